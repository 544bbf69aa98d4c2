"""The data of a Redis server, and the commands that comporta's scripts call on it.

There are strings, hashes and sorted sets, with their expiry times, and the forms of each command that scripts
use. Keys, values and numbers are bytes, as they are in a command. An unknown command, or a key of a type that
the command does not expect, is a bug and raises.

This module knows no Lua, and reads no clock: ``now_us`` is set from outside.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from copy import copy
from operator import itemgetter
from typing import TypeVar, cast

T = TypeVar("T")

Reply = bytes | int | list[bytes | None] | None
"""The reply to a command; ``None`` is the null reply."""


class SortedSet:
    """Members with scores, in the order of their scores and, where these are equal, of their bytes.

    Scores are whole numbers.
    """

    def __init__(self) -> None:
        self._scores: dict[bytes, float] = {}
        self._rows: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, member: bytes) -> bool:
        return member in self._scores

    def __copy__(self) -> SortedSet:
        copied = SortedSet()
        copied._scores, copied._rows = self._scores.copy(), self._rows.copy()
        return copied

    def add(self, member: bytes, score: float) -> None:
        """Add a member, or change its score."""
        self.remove(member)
        self._scores[member] = score
        insort(self._rows, (score, member))

    def remove(self, member: bytes) -> bool:
        """Remove a member; returns whether there was one."""
        score = self._scores.pop(member, None)
        if score is None:
            return False
        del self._rows[bisect_left(self._rows, (score, member))]
        return True

    def between(self, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
        """Return scores and members between two bounds, which are included unless they begin with ``(``."""
        return self._rows[self._position(low, is_upper=False) : self._position(high, is_upper=True)]

    def _position(self, bound: bytes, *, is_upper: bool) -> int:
        search = bisect_right if is_upper != bound.startswith(b"(") else bisect_left
        return search(self._rows, float(bound.removeprefix(b"(")), key=itemgetter(0))


Value = bytes | dict[bytes, bytes] | SortedSet


class Keyspace:
    """Keys with their values and expiry times.

    ``is_changed`` becomes true when a command changes something, and stays true until it is reset.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.is_changed = False
        self._values: dict[bytes, Value] = {}
        self._expires_ms: dict[bytes, int] = {}

    def __copy__(self) -> Keyspace:
        copied = Keyspace()
        copied._values = {key: copy(value) for key, value in self._values.items()}
        copied._expires_ms = self._expires_ms.copy()
        return copied

    def call(self, command: str, *arguments: bytes) -> Reply:
        """Carry out a command, such as ``call("GET", b"key")``."""
        return _COMMANDS[command](self, *arguments)

    def strings(self, prefix: bytes) -> dict[bytes, bytes]:
        """Return the live keys with this prefix whose values are strings, without the prefix."""
        found = {key: self._find(key) for key in list(self._values) if key.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items() if isinstance(value, bytes)}

    def _find(self, key: bytes) -> Value | None:
        """Return the value of a key, if it has not expired."""
        expires_ms = self._expires_ms.get(key)
        if expires_ms is not None and self.now_us // 1000 > expires_ms:
            self._remove(key)
        return self._values.get(key)

    def _find_or_create(self, key: bytes, create: Callable[[], T]) -> T:
        if self._find(key) is None:
            self._values[key] = cast(Value, create())
        self.is_changed = True
        return cast(T, self._values[key])

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        return cast(dict[bytes, bytes], self._find(key)) or {}

    def _sorted_set(self, key: bytes) -> SortedSet:
        return cast(SortedSet, self._find(key)) or SortedSet()

    def _remove(self, key: bytes) -> None:
        del self._values[key]
        self._expires_ms.pop(key, None)

    def _after_removal(self, key: bytes, removed: int) -> int:
        """Return how many elements were removed from a collection; an empty one is removed itself."""
        if removed:
            self.is_changed = True
            if not self._values[key]:
                self._remove(key)
        return int(removed)

    def _time(self) -> Reply:
        seconds, microseconds = divmod(self.now_us, 1_000_000)
        return [b"%d" % seconds, b"%d" % microseconds]

    def _get(self, key: bytes) -> Reply:
        return cast(bytes | None, self._find(key))

    def _exists(self, *keys: bytes) -> Reply:
        return sum(self._find(key) is not None for key in keys)

    def _set(self, key: bytes, value: bytes, option: bytes = b"", milliseconds: bytes = b"") -> Reply:
        self._values[key] = value
        self._expires_ms.pop(key, None)
        self.is_changed = True
        if option:
            self._pexpire(key, milliseconds)
        return b"OK"

    def _del(self, key: bytes) -> Reply:
        if self._find(key) is None:
            return 0
        self._remove(key)
        self.is_changed = True
        return 1

    def _pexpire(self, key: bytes, milliseconds: bytes) -> Reply:
        if self._find(key) is None:
            return 0
        self._expires_ms[key] = self.now_us // 1000 + int(milliseconds)
        self.is_changed = True
        return 1

    def _pttl(self, key: bytes) -> Reply:
        if self._find(key) is None:
            return -2
        return self._expires_ms.get(key, self.now_us // 1000 - 1) - self.now_us // 1000

    def _hget(self, key: bytes, field: bytes) -> Reply:
        return self._hash(key).get(field)

    def _hmget(self, key: bytes, *fields: bytes) -> Reply:
        values = self._hash(key)
        return [values.get(field) for field in fields]

    def _hset(self, key: bytes, *fields_and_values: bytes) -> Reply:
        values: dict[bytes, bytes] = self._find_or_create(key, dict)
        before = len(values)
        values.update(zip(fields_and_values[::2], fields_and_values[1::2], strict=True))
        return len(values) - before

    def _hdel(self, key: bytes, *fields: bytes) -> Reply:
        values = self._hash(key)
        return self._after_removal(key, sum(values.pop(field, None) is not None for field in fields))

    def _zadd(self, key: bytes, *arguments: bytes) -> Reply:
        *options, score, member = arguments
        members = self._sorted_set(key)
        is_new = member not in members
        if options == [b"NX"] and not is_new:
            return 0
        self._find_or_create(key, SortedSet).add(member, float(score))
        return int(is_new)

    def _zcard(self, key: bytes) -> Reply:
        return len(self._sorted_set(key))

    def _zrem(self, key: bytes, member: bytes) -> Reply:
        return self._after_removal(key, self._sorted_set(key).remove(member))

    def _zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> Reply:
        rows = self._sorted_set(key).between(low, high)
        if b"LIMIT" in options:
            start, count = (int(number) for number in options[-2:])
            rows = rows[start : start + count]
        if b"WITHSCORES" not in options:
            return [member for _, member in rows]
        return [part for score, member in rows for part in (member, b"%d" % score)]

    def _zremrangebyscore(self, key: bytes, low: bytes, high: bytes) -> Reply:
        members = self._sorted_set(key)
        rows = members.between(low, high)
        return self._after_removal(key, sum(members.remove(member) for _, member in rows))


_COMMANDS: dict[str, Callable[..., Reply]] = {
    "DEL": Keyspace._del,
    "EXISTS": Keyspace._exists,
    "GET": Keyspace._get,
    "HDEL": Keyspace._hdel,
    "HGET": Keyspace._hget,
    "HMGET": Keyspace._hmget,
    "HSET": Keyspace._hset,
    "PEXPIRE": Keyspace._pexpire,
    "PTTL": Keyspace._pttl,
    "SET": Keyspace._set,
    "TIME": Keyspace._time,
    "ZADD": Keyspace._zadd,
    "ZCARD": Keyspace._zcard,
    "ZRANGEBYSCORE": Keyspace._zrangebyscore,
    "ZREM": Keyspace._zrem,
    "ZREMRANGEBYSCORE": Keyspace._zremrangebyscore,
}
