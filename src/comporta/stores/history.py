"""One hour of numbers per series, summed over all workers, in slots of 10 s by the store's clock.

A slot is ``COLUMNS`` numbers below 2**32; a number that would exceed that stays at the maximum. Workers add
to some columns (calls), set others to their latest value (a limit), and mark in others what was true at any
time of the slot (a circuit's states). A worker's own clock is not used: a reader converts the age of a slot
into its own time. ``fleet/series.py`` defines the meaning of the columns.

On a server a series is one hash with a field for each slot. Other engines keep it as a ring of ``CHUNKS``
records of up to ``CHUNK_SLOTS`` slots each, at most 3.6 KB: one more record than an hour needs, because the
newest is still being filled. On ``shared://``, histories use at most an eighth of the table's memory
(:func:`series_capacity`), because breakers, permits and limits also need room. If the table is full,
``RecordHistory`` raises ``StateFullError`` and changes nothing.

Lua version: ``history.lua``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from struct import Struct
from typing import Any, Final, NamedTuple

from comporta.clock import SECOND_US
from comporta.names import NAME_RULE, is_valid_name
from comporta.stores.base import GONE, Operation, R, Script, State, StateKey, key_text
from comporta.stores.lua import lua, script_error
from comporta.stores.records import RECORD
from comporta.validators import require_number

SPACE: Final = "comporta_history"
SLOT_SECONDS: Final = 10
SLOTS: Final = 360
COLUMNS: Final = 24
NUMBER_MAX: Final = 2**32 - 1
POWERS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""The values that can be marked in a column."""

SERIES_MAX: Final = 100
"""The most series that one process records; the fleet publisher enforces it."""

CHUNK_SLOTS: Final = 36
CHUNKS: Final = SLOTS // CHUNK_SLOTS + 1

SLOT_US: Final = SLOT_SECONDS * SECOND_US
RETENTION_US: Final = (SLOTS + 1) * SLOT_US

_ENTRY = Struct(f"<{1 + COLUMNS}I")
_NUMBER = Struct("<I")
_DIGITS_MAX = 11  # more digits than the largest number has


class HistorySlot(NamedTuple):
    """The numbers of one slot, and how many seconds ago it began."""

    age: float
    numbers: tuple[int, ...]


class History(NamedTuple):
    """The slots of a series, oldest first; slots without numbers are left out."""

    now_us: int
    slots: list[HistorySlot]


def series_capacity(large_records: int) -> int:
    """Return how many series a table with room for ``large_records`` should hold."""
    return min(large_records // 2 // CHUNKS, SERIES_MAX)


def is_series_name(name: str) -> bool:
    """Whether a text is the name of a series: a name, or ``kind.name``."""
    return all(map(is_valid_name, name.split(".", 1)))


class _HistoryOperation(Operation[R]):
    """Base of the operations on one series."""

    __slots__ = ("_series",)

    script = Script("history", partial(lua, "stores/history"), batchable=True)

    def __init__(self, series: str) -> None:
        if not is_series_name(series):
            raise ValueError(f"series must be a name ({NAME_RULE}) or kind.name, got {series!r:.120}")
        self._series = series

    @property
    def state_keys(self) -> list[StateKey]:
        """All chunks of the series; the time decides which of them an operation uses."""
        return [StateKey(SPACE, f"{self._series}:{number}", RECORD) for number in range(CHUNKS)]

    def script_keys(self) -> list[str]:
        """The key of the series."""
        return [key_text(SPACE, self._series)]

    def _checked_answer(self, raw: Sequence[Any]) -> Any:
        """Return this series' part of a batched reply; raises if it is an error."""
        [answer] = raw
        if isinstance(answer, bytes):
            raise script_error(answer, self.script_keys()[0])
        return answer


class RecordHistory(_HistoryOperation[int]):
    """Add ``adds`` to the first columns of the current slot, and ``sets`` others; returns the slot's number.

    ``marks`` are pairs of a column and a power of two, the bit of the column to set.
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
        """Update the current slot and drop slots more than an hour away, in the future too."""
        now = now_us // SLOT_US
        current, chunks = _chunk_index(now), _chunks(states)
        new: list[State | None] = [
            None if index == current else _prune_chunk(chunk, now, now_us)
            for index, chunk in enumerate(chunks)
        ]
        new[current] = self._updated_chunk(chunks[current], now, now_us)
        return new, now

    def _updated_chunk(self, chunk: bytes, now: int, now_us: int) -> State:
        """Return the chunk of the current slot with the slot updated."""
        kept = _slots_between(chunk, now - SLOTS + 1, now)
        previous = kept.pop() if kept and _slot_number(kept[-1], 0) == now else bytes(_ENTRY.size)
        return now_us + RETENTION_US, b"".join(
            [*kept, _ENTRY.pack(now, *self._updated_numbers(_ENTRY.unpack(previous)[1:]))]
        )

    def _updated_numbers(self, previous: Sequence[int]) -> list[int]:
        numbers = list(previous)
        for column, more in enumerate(self._adds):
            numbers[column] = min(numbers[column] + more, NUMBER_MAX)
        for column, number in self._sets.items():
            numbers[column] = number
        for column, power in self._marks:
            numbers[column] |= power
        return numbers

    def script_args(self) -> list[int | str | bytes]:
        """The command, and the columns to add to, to set and to mark with their values."""
        adds = [value for pair in enumerate(self._adds) if pair[1] for value in pair]
        sets = [value for pair in self._sets.items() for value in pair]
        marks = [value for pair in self._marks for value in pair]
        return ["record", len(adds) // 2, *adds, len(self._sets), *sets, len(self._marks), *marks]

    def parse(self, raw: Sequence[Any]) -> int:
        """Read the number of the slot."""
        return int(self._checked_answer(raw))


class ReadHistory(_HistoryOperation[History]):
    """Return the slots that began in the last ``seconds``, the current one included."""

    __slots__ = ("_count",)

    def __init__(self, series: str, seconds: float = SLOTS * SLOT_SECONDS) -> None:
        super().__init__(series)
        require_number("seconds", seconds, above=0, maximum=SLOTS * SLOT_SECONDS)
        self._count = ceil(seconds / SLOT_SECONDS)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], History]:
        """Read the slots without changing them."""
        now = now_us // SLOT_US
        chunks = _chunks(states)
        found = [entry for chunk in chunks for entry in _slots_between(chunk, now - self._count + 1, now)]
        return [None] * CHUNKS, _history(now_us, sorted(map(_ENTRY.unpack, found)))

    def script_args(self) -> list[int | str | bytes]:
        """The command, and how many slots."""
        return ["read", self._count]

    def parse(self, raw: Sequence[Any]) -> History:
        """Read the time, then slot numbers and their texts, in turns."""
        now_us, *rest = self._checked_answer(raw)
        found = zip(rest[::2], rest[1::2], strict=True)
        return _history(int(now_us), [(int(number), *_parse_numbers(text)) for number, text in found])


def _history(now_us: int, found: list[tuple[int, ...]]) -> History:
    return History(
        now_us, [HistorySlot((now_us - number * SLOT_US) / 1e6, tuple(rest)) for number, *rest in found]
    )


def _parse_numbers(text: bytes) -> list[int]:
    """Read a slot's text; words that are not numbers are skipped."""
    found = [min(int(word[:_DIGITS_MAX]), NUMBER_MAX) for word in text.split() if word.isdigit()]
    return [*found, *[0] * COLUMNS][:COLUMNS]


def _chunk_index(number: int) -> int:
    """Return the index of a slot's chunk in the ring."""
    return number // CHUNK_SLOTS % CHUNKS


def _chunks(states: Sequence[State | None]) -> list[bytes]:
    return [b"" if state is None else state[1] for state in states]


def _prune_chunk(chunk: bytes, now: int, now_us: int) -> State | None:
    """Return a chunk without slots more than an hour away; ``None`` if it is unchanged."""
    if not chunk or (now - SLOTS < _slot_number(chunk, 0) and _slot_number(chunk, -_ENTRY.size) <= now):
        return None
    kept = _slots_between(chunk, now - SLOTS + 1, now)
    return (now_us + RETENTION_US, b"".join(kept)) if kept else GONE


def _slots_between(chunk: bytes, first: int, last: int) -> list[bytes]:
    """Return the slots of a chunk from number ``first`` to ``last``, in order."""
    if not chunk or _slot_number(chunk, 0) > last or _slot_number(chunk, -_ENTRY.size) < first:
        return []
    entries = [chunk[start : start + _ENTRY.size] for start in range(0, len(chunk), _ENTRY.size)]
    return [entry for entry in entries if first <= _slot_number(entry, 0) <= last]


def _slot_number(chunk: bytes, start: int) -> int:
    """Return the number of the slot at an offset."""
    number: int = _NUMBER.unpack_from(chunk, start)[0]
    return number
