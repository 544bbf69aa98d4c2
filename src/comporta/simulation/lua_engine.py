"""A server's data as Redis keeps it, and operations carried out by their Lua scripts, in this process.

It is slower than the Python steps (``step_engine.py``), but it runs the scripts that production runs: a
scenario must have the same history with both. Lua 5.1 comes from the package lupa; ``keyspace.py`` has the
data and the commands. Every operation is a separate script call, with the bytes that production sends.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from comporta.limits.concurrency.permits import PERMIT_SPACE
from comporta.simulation.keyspace import Keyspace
from comporta.simulation.server_engine import ServerEngine
from comporta.stores.base import Operation, Script, key_text
from comporta.stores.redis.protocol import ScriptCall, script_text


class LuaEngine(ServerEngine):
    """Keys and values, and a Lua interpreter with the scripts used so far."""

    def __init__(self) -> None:
        self._lua = _new_lua()
        self._globals = self._lua.globals()
        self._scripts: dict[bytes, Callable[[], Any]] = {}
        self._keyspace = Keyspace()
        commands = {b"call": self._call_command, b"pcall": self._call_command}
        self._globals[b"redis"] = self._lua.table_from(commands)

    def apply(self, operation: Operation[Any], now_us: int, clock_us: int = 0) -> tuple[Any, bool]:
        """Run the script of an operation, at the time of the server unless ``clock_us`` is given."""
        keyspace, lua = self._keyspace, self._lua
        keyspace.now_us, keyspace.is_changed = now_us, False
        call = ScriptCall(operation.script, [operation])
        _, sha, count, *words = _parse_command(call.command_bytes(clock_us))
        self._globals[b"KEYS"] = lua.table_from(words[: int(count)])
        self._globals[b"ARGV"] = lua.table_from(words[int(count) :])
        [reply] = call.parse_replies(_as_reply(self._function(sha, call.script)()))
        return reply, keyspace.is_changed

    def entries(self, space: str, now_us: int) -> dict[str, bytes]:
        """Return the live records of a space."""
        self._keyspace.now_us = now_us
        found = self._keyspace.strings(key_text(space, "*").removesuffix("*").encode())
        return {key.decode("utf-8", "surrogatepass"): value for key, value in found.items()}

    def live_permits(self, name: str, now_us: int) -> list[str]:
        """Return the permits of a limit that are in use."""
        self._keyspace.now_us = now_us
        key = key_text(PERMIT_SPACE, name).encode()
        permits: Any = self._keyspace.call("ZRANGEBYSCORE", key, b"(%d" % now_us, b"+inf")
        return [permit.decode() for permit in permits]

    def snapshot(self) -> Keyspace:
        """Return a copy of all keys."""
        return copy(self._keyspace)

    def restore(self, snapshot: Keyspace | None) -> None:
        """Replace all keys."""
        self._keyspace = Keyspace() if snapshot is None else copy(snapshot)

    def _call_command(self, name: bytes, *arguments: bytes | float) -> Any:
        """Carry out a command of a script as ``redis.call`` does, which returns the null reply as false."""
        reply = self._keyspace.call(name.decode(), *[_as_bytes(argument) for argument in arguments])
        if isinstance(reply, list):
            return self._lua.table_from([False if each is None else each for each in reply])
        return False if reply is None else reply

    def _function(self, sha: bytes, script: Script) -> Callable[[], Any]:
        """Return the script with this hash as a function, compiled when it is first used."""
        function = self._scripts.get(sha)
        if function is None:
            _, text = script_text(script, has_change_log=True)
            function = self._scripts[sha] = self._lua.compile(text.encode())
        return function


def _new_lua() -> Any:
    try:
        from lupa.lua51 import LuaRuntime  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("Lua scripts need the package lupa: pip install 'comporta[lua]'") from error
    return LuaRuntime(encoding=None, register_eval=False, register_builtins=False)


def _parse_command(command: bytes) -> list[bytes]:
    """Return the words of a command as it is sent to a server."""
    words, position = [], command.index(b"\r\n") + 2
    while position < len(command):
        end = command.index(b"\r\n", position)
        start, size = end + 2, int(command[position + 1 : end])
        words.append(command[start : start + size])
        position = start + size + 2
    return words


def _as_bytes(argument: bytes | float) -> bytes:
    """Return an argument of ``redis.call`` as it is in a command; a number in Lua is a double."""
    return argument if isinstance(argument, bytes) else b"%.17g" % argument


def _as_reply(value: Any) -> Any:
    """Return a value of Lua as a server's reply: numbers become integers, and false the null reply."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, int | float):
        return int(value) if value is not False else None
    return None if value is None else [_as_reply(value[index]) for index in range(1, len(value) + 1)]
