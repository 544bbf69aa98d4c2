"""What ``async with limiter.reserve(key, cost) as budget`` gives to the program: a granted estimate.

A reservation only remembers; the limiter settles it when its block ends without an exception.
"""

from __future__ import annotations

from comporta.validators import require_integer


class Reservation:
    """An estimate that a limit granted; set ``used`` to what the call really cost.

    The limit is settled when the block ends. Without ``used``, after an exception, and if the process is
    killed, the estimate stays spent.
    """

    __slots__ = ("_granted_at", "_reserved", "_used")

    def __init__(self, reserved: int, granted_at: float) -> None:
        self._reserved = reserved
        self._granted_at = granted_at
        self._used: int | None = None

    def __repr__(self) -> str:
        return f"<Reservation of {self._reserved}, used {self._used}>"

    @property
    def reserved(self) -> int:
        """The estimate, which the limit granted."""
        return self._reserved

    @property
    def granted_at(self) -> float:
        """When the limit granted it, as ``time.monotonic()`` tells the time."""
        return self._granted_at

    @property
    def used(self) -> int | None:
        """What the call really cost; ``None`` while that is unknown."""
        return self._used

    @used.setter
    def used(self, used: int) -> None:
        self._used = require_integer("used", used, 0)
