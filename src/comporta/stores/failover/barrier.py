"""The barrier at which a fleet rejoins after an outage, as pure functions over its state.

Each barrier has an epoch, a number that only increases. A worker knows the epoch that was current when it
last used the store. After losing the store, it accepts only a barrier with a higher epoch, because a barrier
that it already knew is older than the loss. A worker that loses the store again while it waits at a barrier
leaves that barrier and begins another one. The exception is a barrier whose moment is less than ``LEAD_US``
ahead: no worker has rejoined there yet, and members no longer ask, so none would find out about another
barrier.

The barrier has a moment at which its members rejoin. The moment comes sooner once every expected worker is
there, in two rounds. In the first, every worker asks. In the second, every worker asks once more and states
that it knows this barrier. A request whose reply was lost, or a worker that came and lost the store again,
therefore does not end the barrier for the others. A worker that never lost the store counts in both rounds as
soon as it confirms the epoch with a heartbeat.

Members ask repeatedly until shortly before the moment. If none has asked for ``INTERRUPTED_US``, they have
lost the store again, and the next worker that arrives begins another barrier, which gives them time to
return.

A barrier is done when a worker that rejoined there confirms it. Until then, reaching the moment proves
nothing: the store may have hung in the meantime, and more workers may have lost it. A worker that asks just
after the moment is asked to come again; if no worker has confirmed by then that the barrier is done, another
one begins. A worker that comes up to ``LATE_US`` later, and has not used the store since, rejoins at once.

Lua version: ``worker_registry.lua``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from comporta.clock import SECOND_US
from comporta.stores.base import State

UNKNOWN_EPOCH = -1
"""The epoch of a worker that never used the store, or that must not confirm one."""

LEAD_US = SECOND_US // 5
"""How far ahead the moment is once all expected workers are members, so that each learns it in time."""

INTERRUPTED_US = SECOND_US // 4
"""Members have lost the store again if none of them has asked for this long: each asks every 0.1 s."""

GRACE_US = SECOND_US // 10
"""How long after the moment the first worker that rejoined there may take to confirm it."""

LATE_US = SECOND_US // 2
"""How long after the moment a worker that comes late rejoins at once: the others still use the store.

Later, they may have lost it again, so another barrier begins. Workers that use the store soon confirm it.
"""

BARRIER_TTL_US = 3600 * SECOND_US
"""How long a barrier is remembered, for workers that come after its moment."""

_MEMBERS_MAX = 200
_AGAIN = "+"


class RejoinRequest(NamedTuple):
    """The request of a worker that lost the store.

    ``used_epoch`` is the epoch that it knew when it last used the store, ``lost_epoch`` the highest that it
    knew when it lost the store, even while it waited to rejoin, and ``waiting_epoch`` the epoch of the
    barrier at which it waits. ``worker_count`` is how many workers it knows of, and ``barrier_us`` how long a
    new barrier lasts if some of them do not come.
    """

    member: str
    lost_epoch: int
    worker_count: int
    barrier_us: int
    used_epoch: int
    waiting_epoch: int = UNKNOWN_EPOCH


class RejoinMoment(NamedTuple):
    """The epoch of the barrier, and the microseconds left until its members rejoin."""

    epoch: int
    left_us: int


class Barrier(NamedTuple):
    """The state of a barrier; the epoch is 0 if there is none.

    ``asked_us`` is when a member last asked. ``members`` are the workers that came, and whether each has come
    again since all are present.
    """

    epoch: int = 0
    moment_us: int = 0
    is_done: bool = False
    expected: int = 0
    asked_us: int = 0
    members: Mapping[str, bool] = MappingProxyType({})

    @classmethod
    def from_state(cls, state: State | None) -> Barrier:
        """Read what ``to_state`` wrote."""
        return cls() if state is None else _parse(bytes(state[1]))

    def to_state(self, now_us: int) -> State:
        """Return the state for a store: when it expires, and its text."""
        numbers = (self.epoch, self.moment_us, int(self.is_done), self.expected, self.asked_us)
        members = (member + _AGAIN * came_again for member, came_again in self.members.items())
        return now_us + BARRIER_TTL_US, " ".join([*map(str, numbers), *members]).encode()

    @property
    def is_running(self) -> bool:
        """Whether no worker has rejoined at this barrier yet."""
        return self.epoch > 0 and not self.is_done

    def join(self, request: RejoinRequest, now_us: int) -> tuple[Barrier, RejoinMoment]:
        """Return the barrier with a worker that lost the store, or a new one, and when the worker rejoins."""
        past_us, used_epoch = now_us - self.moment_us, request.used_epoch
        if self.is_done and 0 <= past_us < LATE_US and self.epoch > used_epoch != UNKNOWN_EPOCH:
            return self, RejoinMoment(self.epoch, 0)  # the others have rejoined: this one is the last
        if self.is_running and 0 <= past_us < GRACE_US:
            return self, RejoinMoment(self.epoch, LEAD_US + GRACE_US // 2)  # it asks again before it rejoins
        barrier = self
        if not self._is_open_for(request, now_us):
            epoch = max(self.epoch, request.lost_epoch) + 1
            barrier = Barrier(epoch, now_us + request.barrier_us, asked_us=now_us)
        barrier = barrier._replace(
            moment_us=min(barrier.moment_us, now_us + request.barrier_us),  # the clock was set back
            expected=max(barrier.expected, request.worker_count),
        )
        is_waiting = request.waiting_epoch == barrier.epoch
        if is_waiting:
            barrier = barrier._replace(asked_us=now_us)
        barrier = barrier._with_member(request.member, now_us, is_waiting=is_waiting, uses_store=False)
        return barrier, RejoinMoment(barrier.epoch, barrier.moment_us - now_us)

    def _is_open_for(self, request: RejoinRequest, now_us: int) -> bool:
        """Whether a worker can rejoin at this barrier."""
        left_us = self.moment_us - now_us
        last_asked_us = min(now_us, self.moment_us - LEAD_US)  # no worker needs to ask after that
        if not self.is_running or left_us <= 0 or last_asked_us - self.asked_us > INTERRUPTED_US:
            return False
        if self.epoch > request.lost_epoch:
            return True
        return self.epoch == request.lost_epoch and left_us < LEAD_US

    def confirm(self, member: str, epoch: int, now_us: int) -> Barrier:
        """Return the barrier after the heartbeat of a worker that uses the store and knows an epoch."""
        if epoch != self.epoch or not self.is_running:
            return self
        if now_us >= self.moment_us:
            return self._replace(is_done=True)
        return self._with_member(member, now_us, is_waiting=True, uses_store=True)

    def _with_member(self, member: str, now_us: int, *, is_waiting: bool, uses_store: bool) -> Barrier:
        """Return the barrier with a worker added, and with an earlier moment if all have come again."""
        members, expected, moment_us = dict(self.members), self.expected, self.moment_us
        if member in members or len(members) < _MEMBERS_MAX:
            came_again = uses_store or (is_waiting and len(members.keys() | {member}) >= expected)
            members[member] = came_again or members.get(member, False)
        if expected <= 1:
            moment_us = min(moment_us, now_us)
        elif sum(members.values()) >= expected:
            moment_us = min(moment_us, now_us + LEAD_US)
        return self._replace(members=members, moment_us=moment_us)


@lru_cache(maxsize=2)  # every heartbeat reads the barrier, which changes only while workers rejoin
def _parse(text: bytes) -> Barrier:
    epoch, moment_us, is_done, expected, asked_us, *members = text.decode().split(" ")
    numbers = int(expected), int(asked_us)
    came = {member.rstrip(_AGAIN): member.endswith(_AGAIN) for member in members}
    return Barrier(int(epoch), int(moment_us), is_done == "1", *numbers, came)
