"""What is started and closed, and can be used in a ``with``."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Started:
    """Something that runs from ``start`` to ``close``."""

    def start(self) -> Self:
        """Start it."""
        raise NotImplementedError

    def close(self) -> None:
        """End it, and remove what it left."""
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
