"""The base class of everything that a test starts and closes, usually in a ``with`` statement."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Lifecycle:
    """Something that runs from ``start`` to ``close``."""

    def start(self) -> Self:
        """Start it and return it."""
        raise NotImplementedError

    def close(self) -> None:
        """End it and remove the files it wrote."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
