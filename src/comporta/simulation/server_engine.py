"""The data of a simulated server and how it carries out operations, but not how it fails.

``step_engine.py`` carries out the Python steps of operations, ``lua_engine.py`` their Lua scripts. Both give
the same replies, so a scenario has the same history with either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from comporta.stores.base import Operation


class ServerEngine(ABC):
    """The data of a server. It reads no clock: the server's time is an argument, in microseconds."""

    @abstractmethod
    def apply(self, operation: Operation[Any], now_us: int) -> tuple[Any, bool]:
        """Carry out an operation; returns its reply and whether the data changed."""

    @abstractmethod
    def entries(self, space: str, now_us: int) -> dict[str, bytes]:
        """Return the live records of a space."""

    @abstractmethod
    def live_permits(self, name: str, now_us: int) -> list[str]:
        """Return the permits of a limit that are in use, each as ``id owner``."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return a copy of the data, for :meth:`restore`."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Replace the data by a snapshot, which stays as it is; ``None`` deletes everything."""
