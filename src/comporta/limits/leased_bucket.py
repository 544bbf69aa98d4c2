"""A token bucket that lends: what it holds plus what is out on lease never exceeds its capacity.

Tokens on lease may be used some time after they left the bucket. If the bucket went on to fill up to its
whole capacity meanwhile, both together would be more than one burst. So the state keeps a *book* of what is
out, and the bucket fills only as far as the book leaves room.

The book forgets by itself, since workers may die: time is cut into slices as long as a lease may be used, and
the book holds what was lent in one slice and in the slice before. A lease is thus on the book until it can be
used no more, and for twice that time at the most.

A class of its own, so that plain buckets stay as small and as fast as they are.

Twin: ``token_bucket.lua``; what only leases do is in ``lease.lua``.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from comporta.clock import SECOND_US
from comporta.limits.rule import Ended, Lent, Numbers, View, rescaled
from comporta.limits.token_bucket import TokenBucket
from comporta.limits.traffic import NO_PAST, SLICE_BITS, recent, returned, shifted
from comporta.stores.base import State
from comporta.stores.records import NEVER_US


class Book(NamedTuple):
    """What is out: lent in the slice of this number, and in the slice before it."""

    number: int
    current: int
    before: int


class LeasedTokenBucket(TokenBucket):
    """``capacity`` tokens at the most, here and out on lease together.

    State: that of a bucket, then the three numbers of the book.
    """

    __slots__ = ("slice_us",)

    # begins as a plain bucket's does: programs that lease and programs that do not can share a state
    codec = Struct("<qqqI16sqII")

    def __init__(self, capacity: int, per_us: int, unit: int, slice_us: int) -> None:
        super().__init__(capacity, per_us, unit)
        self.slice_us = slice_us
        self.numbers = Numbers(capacity, per_us, unit, slice_us)

    def changed(self, numbers: Numbers) -> LeasedTokenBucket:
        """Return the rule with other numbers; who does not lease says nothing of slices in them."""
        capacity, per_us, unit, slice_us = numbers
        return LeasedTokenBucket(capacity, per_us, unit, slice_us or self.slice_us)

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` tokens if they are there, as a plain bucket does."""
        if state is None:
            state = (self.full, now_us, self.unit, 0, NO_PAST, *Book(0, 0, 0))
        _, last_us, _, count, past, *book = state
        level = self._level(state, now_us)
        need, wait_us = cost * self.unit, 0
        if level < need and level < self.full and patience_us >= 0:
            wait_us = self._wait(level, min(need, self.full), now_us, Book(*book))
            if now_us >= last_us:
                return None, wait_us
            need = cost = 0  # the clock went back: anchor the state to the new time, taking nothing
        if (now_us ^ last_us) >> SLICE_BITS:
            past, count = shifted(past, count, last_us, now_us), 0
        level -= need
        if patience_us < 0:
            level = max(level, -SECOND_US * self.per_us)
        return (level, now_us, self.unit, count + cost, past, *book), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Put tokens back, as far as the book leaves room."""
        _, last_us, _, count, past, *book = state
        room = self._pieces(self._rolled(Book(*book), now_us), now_us)[0][1]
        level = min(room, self._level(state, now_us) + cost * self.unit)
        return (level, now_us, self.unit, *returned(past, count, last_us, now_us, cost), *book)

    def view(self, state: State | None, now_us: int) -> View:
        """Tell the whole tokens there are, without those that are out, and when the bucket will be full."""
        if state is None:
            return View(self.capacity, 0, 0)
        _, last_us, _, count, past, *book = state
        level = self._level(state, now_us)
        reset_us = self._wait(level, self.full, now_us, Book(*book))
        return View(max(0, level // self.unit), reset_us, recent(past, count, last_us, now_us))

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """Enter tokens that were just taken into the book; they may be used for one slice's time."""
        number, current, before = self._rolled(Book(*state[5:]), now_us)
        if amount:
            state = (*state[:5], number, current + amount, before)
        return Lent(state, self.slice_us, number)

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> State | None:
        """Strike a lease off the book, and put what is left of it into the bucket.

        A lease that the book no longer knows is over: the bucket has been filling up in its place.
        """
        number, current, before = self._rolled(Book(*state[5:]), now_us)
        if ended.name == number:
            struck = min(ended.lent, current)
            current -= struck
        elif ended.name == number - 1:
            struck = min(ended.lent, before)
            before -= struck
        else:
            return None
        _, last_us, _, count, past, *_ = state
        settled = (self._level(state, now_us), now_us, self.unit)  # by the book as it was until now
        counted = returned(past, count, last_us, now_us, 0)
        struck_off = (*settled, *counted, number, current, before)
        return self.give(struck_off, now_us, max(0, ended.unused - (ended.lent - struck)))

    def _level(self, state: State, now_us: int) -> int:
        """Return the level, refilled no further than there was room at each moment since the last change."""
        level = rescaled(state[0], state[2], self.unit)
        since_us: int = min(state[1], now_us)
        for ends_us, room in self._pieces(Book(*state[5:]), now_us):
            if since_us < ends_us:
                upto_us = min(ends_us, now_us)
                level = min(level + (upto_us - since_us) * self.per_us, room)
                since_us = upto_us
        return level

    def _wait(self, level: int, need: int, now_us: int, book: Book) -> int:
        """Return how long until the level is ``need``, which fits once nothing is out."""
        at_us = now_us
        for ends_us, room in self._pieces(book, now_us):
            if at_us < ends_us and level < need:
                ready_us = at_us - (level - need) // self.per_us
                upto_us = min(ends_us, ready_us) if need <= room else ends_us
                level = min(level + (upto_us - at_us) * self.per_us, room)
                at_us = upto_us
        return at_us - now_us

    def _pieces(self, book: Book, now_us: int) -> tuple[tuple[int, int], ...]:
        """Return until when how much fits into the bucket, as tokens that are out come off the book."""
        if not book.current + book.before or book.number > now_us // self.slice_us:
            return ((NEVER_US, self.full),)
        first_us = (book.number + 1) * self.slice_us
        return (
            (first_us, self._room(book.current + book.before)),
            (first_us + self.slice_us, self._room(book.current)),
            (NEVER_US, self.full),
        )

    def _room(self, out: int) -> int:
        return max(0, self.capacity - out) * self.unit

    def _rolled(self, book: Book, now_us: int) -> Book:
        """Return the book as of now; empty after a clock went back: nothing in it can be placed."""
        number = now_us // self.slice_us
        if number == book.number:
            return book
        return Book(number, 0, book.current if number == book.number + 1 else 0)
