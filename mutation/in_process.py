"""Runs tests in this process only: no server is started, no other process, and no stall is waited for."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"}
"""Audit events of starting a process."""


class ProcessNotAllowed(Exception):  # noqa: N818 - it ends a test; no caller catches it
    """A test tried to start a server or a process."""


class AbsentServer:
    """Takes the place of a server in a fixture, and ends a test that uses it."""

    def __init__(self, *options: object, **more: object) -> None:
        pass

    def __enter__(self) -> AbsentServer:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise ProcessNotAllowed("this test needs a server")


class QuietMachine:
    """Takes the place of the process that watches for stalls."""

    def __init__(self, *options: object) -> None:
        pass

    def longest_stall_since(self, moment_ns: int) -> float:
        """Return 0: a test that misses a deadline is not retried."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


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
        import hypothesis  # noqa: PLC0415 - its pytest plugin must be the first to import it

        hypothesis.settings.register_profile(
            "mutants",
            hypothesis.settings.get_profile("no time limits"),
            derandomize=True,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        )
        hypothesis.settings.load_profile("mutants")


def pytest_arguments(tests: list[str]) -> list[str]:
    """Return the arguments for a run without output, caches and plugins that distribute or measure."""
    plugins = ("no:cacheprovider", "no:terminal", "no:cov", "no:faulthandler")
    options = [word for plugin in plugins for word in ("-p", plugin)]
    return [*options, "-s", "-o", "addopts=--import-mode=importlib -p no:valkey", *tests]
