"""One hour of numbers by name, summed over all workers, in slots of ten seconds by the clock of the state.

A worker's own clock says nothing here: whoever reads turns the age of a slot into a time of its own. A slot
is ``COLUMNS`` numbers below 2**32, which stay at the most when they would pass it. To some of them workers
add (calls), others they set, and the last word counts (a limit), in others they mark what was so at any time
(how a circuit stood). What the columns mean is not known here (``watching/series.py``).

On a server a series is one hash, with a field for each slot. In memory and on this machine it is a ring of
``CHUNKS`` records of up to ``CHUNK_SLOTS`` slots each, 3.6 KB at the most: one more than an hour takes, as
the newest is still being filled. A ``shared://`` table has room for a 32nd as many large records as it has
keys (512 with the default of 16,384, 128 at the least), all kinds together. Breakers and permits need them,
too, so histories should have half of them and no more (:func:`series_room`: 23 series, 5 at the least). Where
the table is full ``Tell`` ends in ``StateFullError``, and what is there stays.

Twin: ``history.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from struct import Struct
from typing import Any, Final, NamedTuple

from comporta.clock import SECOND_US
from comporta.names import NAMES_ALLOWED, is_name
from comporta.stores.base import GONE, Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.naming import named
from comporta.stores.records import RECORD

SPACE: Final = "comporta_history"
SLOT_SECONDS: Final = 10
SLOTS: Final = 360
COLUMNS: Final = 24
NUMBER_MAX: Final = 2**32 - 1
POWERS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""What can be marked in a column."""

SERIES_MAX: Final = 100
"""How many series a process tells of; who keeps them sees to it."""

CHUNK_SLOTS: Final = 36
CHUNKS: Final = SLOTS // CHUNK_SLOTS + 1

SLOT_US: Final = SLOT_SECONDS * SECOND_US
KEPT_US: Final = (SLOTS + 1) * SLOT_US

_ENTRY = Struct(f"<{1 + COLUMNS}I")
_NUMBER = Struct("<I")
_DIGITS_MAX = 11  # more than the largest number has


class Slot(NamedTuple):
    """Some numbers, and how many seconds ago their ten seconds began."""

    age: float
    numbers: tuple[int, ...]


class History(NamedTuple):
    """What was told of a series, the oldest slot first; slots of which nothing was told are left out."""

    now_us: int
    slots: list[Slot]


def series_room(large_records: int) -> int:
    """Return how many series a table should hold that has room for so many large records."""
    return min(large_records // 2 // CHUNKS, SERIES_MAX)


def is_series(name: str) -> bool:
    """Whether a series may be called so: a name, or a kind and a name with a dot between them."""
    return all(map(is_name, name.split(".", 1)))


class _HistoryOperation:
    """What telling and recalling have in common: the series."""

    __slots__ = ("_series",)

    script = Script("history", partial(lua, "stores", "history"), joins=True)
    followed = False
    fields = 1

    def __init__(self, series: str) -> None:
        if not is_series(series):
            raise ValueError(f"series must be a name ({NAMES_ALLOWED}) or kind.name, got {series!r:.120}")
        self._series = series

    @property
    def parts(self) -> list[Part]:
        """All chunks of the series: which of them it is about, time tells."""
        return [Part(SPACE, f"{self._series}:{number}", RECORD) for number in range(CHUNKS)]

    def key_names(self) -> list[str]:
        """The series."""
        return [key_text(SPACE, self._series)]

    def _answer(self, raw: Sequence[Any]) -> Any:
        """Return what stands there for this series; an error in its place names the key."""
        [answer] = raw
        if isinstance(answer, bytes):
            key = repr(self.key_names()[0])
            raise named(RuntimeError(answer.decode("utf-8", "replace")), key, key)
        return answer

    @staticmethod
    def undo(reply: object) -> None:
        """What was told has happened, whoever waits for the answer."""

    @staticmethod
    def alone(outage: object) -> None:
        """A history is everybody's, or it is none."""


class Tell(_HistoryOperation):
    """Add to columns of the present slot, from the first on, and set others; returns the slot's number.

    ``marks`` are columns and powers of two, each of which is in the sum of its column from now on.
    """

    __slots__ = ("_adds", "_marks", "_sets")

    def __init__(
        self,
        series: str,
        adds: Sequence[int] = (),
        sets: Mapping[int, int] | None = None,
        marks: Iterable[tuple[int, int]] = (),
    ) -> None:
        super().__init__(series)
        sets = sets or {}
        self._marks = list(marks)
        if any(not 0 <= column < COLUMNS or power not in POWERS for column, power in self._marks):
            raise ValueError(
                f"marks must be of columns 0 to {COLUMNS - 1} and powers of two up to {POWERS[-1]}, "
                f"got {self._marks!r:.100}"
            )
        if len(adds) > COLUMNS:
            raise ValueError(f"adds must be at most {COLUMNS} numbers, got {len(adds)}")
        if any(not 0 <= column < COLUMNS for column in sets):
            raise ValueError(f"sets must be of columns 0 to {COLUMNS - 1}, got {sorted(sets)}")
        for name, numbers in (("adds", adds), ("sets", sets.values())):
            if any(number < 0 for number in numbers):
                raise ValueError(f"{name} must be at least 0, got {min(numbers)}")
        self._adds = [min(number, NUMBER_MAX) for number in adds]
        self._sets = {column: min(number, NUMBER_MAX) for column, number in sets.items()}

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Change one slot, and drop what is more than an hour away: a clock may be set back, too."""
        now = now_us // SLOT_US
        here = _place(now)
        new: list[State | None] = [
            None if place == here else _pruned(chunk, now, now_us)
            for place, chunk in enumerate(_chunks(states))
        ]
        new[here] = self._written(_chunks(states)[here], now, now_us)
        return new, now

    def _written(self, chunk: bytes, now: int, now_us: int) -> State:
        """Return the chunk of the present slot as it is afterwards."""
        kept = _kept(chunk, now - SLOTS + 1, now)
        was = kept.pop() if kept and _number(kept[-1], 0) == now else bytes(_ENTRY.size)
        return now_us + KEPT_US, b"".join([*kept, _ENTRY.pack(now, *self._told(_ENTRY.unpack(was)[1:]))])

    def _told(self, was: Sequence[int]) -> list[int]:
        numbers = list(was)
        for column, more in enumerate(self._adds):
            numbers[column] = min(numbers[column] + more, NUMBER_MAX)
        for column, number in self._sets.items():
            numbers[column] = number
        for column, power in self._marks:
            numbers[column] |= power
        return numbers

    def arguments(self) -> list[int | str | bytes]:
        """Verb, how many columns to add to, what, and those to set and to mark by turns with what."""
        sets = [value for pair in self._sets.items() for value in pair]
        marks = [value for pair in self._marks for value in pair]
        return ["tell", len(self._adds), *self._adds, len(self._sets), *sets, len(self._marks), *marks]

    def parse(self, raw: Sequence[Any]) -> int:
        """One number."""
        return int(self._answer(raw))


class Recall(_HistoryOperation):
    """Return what was told in the slots that began in the last ``seconds``, the present one among them."""

    __slots__ = ("_count",)

    def __init__(self, series: str, seconds: float = SLOTS * SLOT_SECONDS) -> None:
        super().__init__(series)
        if not 0 < seconds <= SLOTS * SLOT_SECONDS:
            raise ValueError(f"seconds must be above 0 and at most {SLOTS * SLOT_SECONDS}, got {seconds}")
        self._count = ceil(seconds / SLOT_SECONDS)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], History]:
        """Look, change nothing."""
        now = now_us // SLOT_US
        chunks = _chunks(states)
        found = [entry for chunk in chunks for entry in _kept(chunk, now - self._count + 1, now)]
        return [None] * CHUNKS, _history(now_us, sorted(map(_ENTRY.unpack, found)))

    def arguments(self) -> list[int | str | bytes]:
        """Verb, and how many slots."""
        return ["recall", self._count]

    def parse(self, raw: Sequence[Any]) -> History:
        """Read the moment, then numbers of slots and what is in them, by turns."""
        now_us, *rest = self._answer(raw)
        found = zip(rest[::2], rest[1::2], strict=True)
        return _history(int(now_us), [(int(number), *_numbers(text)) for number, text in found])


def _history(now_us: int, found: list[tuple[int, ...]]) -> History:
    return History(now_us, [Slot((now_us - number * SLOT_US) / 1e6, tuple(rest)) for number, *rest in found])


def _numbers(text: bytes) -> list[int]:
    """Read a slot; what somebody may have written there that is none is nothing."""
    found = [min(int(word[:_DIGITS_MAX]), NUMBER_MAX) for word in text.split() if word.isdigit()]
    return [*found, *[0] * COLUMNS][:COLUMNS]


def _place(number: int) -> int:
    """Return where in the ring a slot belongs."""
    return number // CHUNK_SLOTS % CHUNKS


def _chunks(states: Sequence[State | None]) -> list[bytes]:
    return [b"" if state is None else state[1] for state in states]


def _pruned(chunk: bytes, now: int, now_us: int) -> State | None:
    """Return a chunk without what is more than an hour away; nothing where nothing is."""
    if not chunk or (now - SLOTS < _number(chunk, 0) and _number(chunk, -_ENTRY.size) <= now):
        return None
    kept = _kept(chunk, now - SLOTS + 1, now)
    return (now_us + KEPT_US, b"".join(kept)) if kept else GONE


def _kept(chunk: bytes, first: int, last: int) -> list[bytes]:
    """Return the slots of a chunk from one to another, in order."""
    if not chunk or _number(chunk, 0) > last or _number(chunk, -_ENTRY.size) < first:
        return []
    entries = [chunk[start : start + _ENTRY.size] for start in range(0, len(chunk), _ENTRY.size)]
    return [entry for entry in entries if first <= _number(entry, 0) <= last]


def _number(chunk: bytes, start: int) -> int:
    """Return the number of the slot that is written there."""
    number: int = _NUMBER.unpack_from(chunk, start)[0]
    return number
