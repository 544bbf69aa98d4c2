"""Ctrl-C during a run: the first finishes the items in progress, the second stops, a third acts as usual."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class SignalHandlers:
    """Handles SIGINT and SIGTERM inside the ``with`` block; only the main thread can receive them."""

    def __init__(self, drain: Callable[[], None], stop: Callable[[], None], *, enabled: bool) -> None:
        self._actions = [drain, stop]
        self._enabled = enabled
        self._loop = asyncio.get_running_loop()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> None:
        if self._enabled:
            self._previous = {number: signal.getsignal(number) for number in _SIGNALS}
            with suppress(ValueError, RuntimeError):  # not the main thread
                for number in _SIGNALS:
                    self._loop.add_signal_handler(number, self._on_signal)

    def __exit__(self, *exc_info: object) -> None:
        if self._enabled:
            self._remove_handlers()
            self._restore()

    def _on_signal(self) -> None:
        self._actions.pop(0)()
        if not self._actions:
            self._remove_handlers()

    def _restore(self) -> None:
        """Restore the handlers of the program."""
        with suppress(ValueError):  # not the main thread
            for number, handler in self._previous.items():
                if handler is not None:  # None: a handler that was not set from Python
                    signal.signal(number, handler)

    def _remove_handlers(self) -> None:
        for number in _SIGNALS:
            with suppress(ValueError, RuntimeError):
                self._loop.remove_signal_handler(number)
