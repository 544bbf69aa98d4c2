"""Runs tests in this process only: they start no server or other process, and do not wait for stalls.

Tests that compare Python with the Lua of an algorithm run the scripts in this process, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import pytest

from comporta.clock import Clock
from comporta.simulation.lua_engine import LuaEngine
from comporta.stores.base import Operation

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"}
"""Audit events that mean the start of a process."""


class ProcessNotAllowed(AttributeError):  # noqa: N818 - it ends a test; no caller catches it
    """A test tried to start a process, or used a server that was not started.

    For Hypothesis, which looks at the arguments of tests, such a server has no attributes.
    """


class AbsentServer:
    """Replaces a server in a fixture, and ends a test that uses it."""

    def __init__(self, *options: object, **more: object) -> None:
        pass

    def __enter__(self) -> AbsentServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise ProcessNotAllowed(f"this test needs a server, for its {name}")


class QuietMachine:
    """Replaces the process that watches for stalls."""

    def __init__(self, *options: object) -> None:
        pass

    def longest_stall_since(self, moment_ns: int) -> float:
        """Return 0: a test that misses a deadline is not retried."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


class LuaStore:
    """Replaces a store on a server, and runs the scripts in this process.

    As in a test with a real server, scripts read the clock of the test, and the server's own
    clock, by which it expires keys, stands still.
    """

    def __init__(self, engine: LuaEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def apply(self, operation: Operation[Any]) -> Any:
        """Run the script of an operation."""
        clock_us = self._clock.now_ns() // 1000
        return self._engine.apply(operation, now_us=1, clock_us=clock_us)[0]

    def apply_many(self, operations: list[Operation[Any]]) -> list[Any]:
        """Run the scripts of operations one after the other."""
        return [self.apply(operation) for operation in operations]


@contextmanager
def lua_store(server: AbsentServer, clock: Clock) -> Iterator[LuaStore]:
    """Yield an empty store, as ``redis_store`` of ``tests/support.py`` does."""
    engine = _lua_engine()
    engine.restore(None)
    yield LuaStore(engine, clock)


@cache
def _lua_engine() -> LuaEngine:
    return LuaEngine()


def refuse_processes() -> None:
    """End every test of this process that starts another one. This cannot be undone."""
    allowed = os.getpid()

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event in _STARTS and os.getpid() == allowed:
            raise ProcessNotAllowed(f"this test starts a process ({event})")

    sys.addaudithook(refuse)


class InProcessPlugin:
    """pytest plugin: the tests use no server, and Hypothesis tries the same examples each time."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Replace what the fixtures of ``tests/conftest.py`` would start."""
        for plugin in session.config.pluginmanager.get_plugins():
            if hasattr(plugin, "StallMonitor"):
                plugin.StallMonitor = QuietMachine
                plugin.Server = plugin.PostgresServer = AbsentServer
                plugin._without_coverage = nullcontext  # noqa: SLF001 - measure these tests, too
        import hypothesis  # noqa: PLC0415 - its pytest plugin must be the first to import it

        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("no time limits"),
            derandomize=True,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let the tests that need Lua, but no server, run once each."""
        for item in list(items):
            if isinstance(item, pytest.Function) and "differential" in item.path.parts:
                vars(item.module)["redis_store"] = lua_store
                if getattr(item, "callspec", None) and item.callspec.params.get("server") != "valkey":
                    items.remove(item)


def pytest_arguments(tests: list[str]) -> list[str]:
    """Return the arguments for a run without output, caches and plugins that distribute or measure."""
    plugins = ("no:cacheprovider", "no:terminal", "no:cov", "no:faulthandler")
    options = [word for plugin in plugins for word in ("-p", plugin)]
    return [*options, "-s", "-o", "addopts=--import-mode=importlib -p no:valkey", *tests]
