"""Ctrl-C: once to finish what is under way, twice to stop, a third time as everywhere else."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """While it is entered, signals ask a run to end; only the main thread hears any."""

    def __init__(self, drain: Callable[[], None], stop: Callable[[], None], *, wanted: bool) -> None:
        self._upcoming = [drain, stop]
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        if self._wanted:
            with suppress(ValueError, RuntimeError, NotImplementedError):  # not the main thread
                for number in _SIGNALS:
                    self._loop.add_signal_handler(number, self._heard)

    def __exit__(self, *ended: object) -> None:
        if self._wanted:
            self._deaf()

    def _heard(self) -> None:
        self._upcoming.pop(0)()
        if not self._upcoming:
            self._deaf()

    def _deaf(self) -> None:
        for number in _SIGNALS:
            with suppress(ValueError, RuntimeError):
                self._loop.remove_signal_handler(number)
