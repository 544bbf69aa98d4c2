"""Ctrl-C: once to finish what is under way, twice to stop, a third time as everywhere else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is entered, signals ask a run to end; only the main thread hears any."""

    def __init__(self, drain: Callable[[], None], stop: Callable[[], None], *, wanted: bool) -> None:
        self._upcoming = [drain, stop]
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if self._wanted:
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            with suppress(ValueError, RuntimeError):  # not the main thread
                for number in _SIGNALS:
                    self._loop.add_signal_handler(number, self._heard)

    def __exit__(self, *ended: object) -> None:
        if self._wanted:
            self._deaf()
            self._give_back()

    def _heard(self) -> None:
        self._upcoming.pop(0)()
        if not self._upcoming:
            self._deaf()

    def _give_back(self) -> None:
        """Let those hear who did before: a program may have a handler of its own."""
        with suppress(ValueError):  # not the main thread
            for number, handler in self._before.items():
                if handler is not None:  # one that is not Python's cannot be set from here
                    signal.signal(number, handler)

    def _deaf(self) -> None:
        for number in _SIGNALS:
            with suppress(ValueError, RuntimeError):
                self._loop.remove_signal_handler(number)
