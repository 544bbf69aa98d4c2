"""Options that apply to single calls through an upstream rather than to all of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from comporta.limits.cost import Cost
from comporta.limits.priority import Caller, check_owner, priority_rank, resolve_caller
from comporta.timeouts import Timeouts
from comporta.validators import require_integer, require_number

BUFFER_BODY_MAX = 1 << 30  # bytes
SECONDS_MAX = 86_400.0


class Unchanged(Enum):
    """The type of :data:`UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""The default of an option for which ``None`` has a meaning: the option stays as it is."""


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of the calls that are made through one view of an upstream."""

    timeouts: Timeouts | None
    """The time-out of each attempt; ``None``: no bound."""

    priority: str | None = None
    """The priority class; ``None``: that of the context."""

    owner: str | None = None
    """The owner, which takes turns with other owners; ``None``: that of the context."""

    cost: Cost = 1
    """What each attempt takes from the limit, or from each of several limits."""

    max_wait: float | None = None
    """How many seconds a call waits for capacity; ``None``: as long as the upstream says."""

    is_classed: bool = field(init=False)
    """Whether the calls have a class or a cost of their own, which the fast path has to check."""

    def __post_init__(self) -> None:
        """Compute what every call needs."""
        object.__setattr__(self, "is_classed", self.priority is not None or self.cost != 1)

    @property
    def timeout(self) -> float | None:
        """The seconds that each attempt may take; ``None``: no bound."""
        return None if self.timeouts is None else self.timeouts.seconds

    @property
    def caller(self) -> Caller:
        """The class and the owner of a call that is made now."""
        return resolve_caller(self.priority, self.owner)

    def change(
        self,
        *,
        timeout: float | Unchanged | None = UNCHANGED,
        priority: str | Unchanged | None = UNCHANGED,
        owner: str | Unchanged | None = UNCHANGED,
        cost: Cost | Unchanged = UNCHANGED,
        max_wait: float | Unchanged = UNCHANGED,
    ) -> CallOptions:
        """Return these options with the given ones changed."""
        changes: dict[str, Any] = {} if cost is UNCHANGED else {"cost": cost}
        if max_wait is not UNCHANGED:
            changes["max_wait"] = require_number("max_wait", max_wait, 0, SECONDS_MAX, unit="seconds")
        if timeout is not UNCHANGED:
            changes["timeouts"] = make_timeouts(timeout)
        if priority is not UNCHANGED:
            if priority is not None:
                priority_rank(priority)
            changes["priority"] = priority
        if owner is not UNCHANGED:
            changes["owner"] = None if owner is None else check_owner(owner)
        return replace(self, **changes)


def make_timeouts(seconds: float | None) -> Timeouts | None:
    """Return the time-outs of this duration; ``None``: no bound."""
    return None if seconds is None else Timeouts(seconds)


def check_buffer_body(size: int | None) -> int | None:
    """Return the size of a body's buffer if it is valid; ``None``: bodies are not buffered."""
    return None if size is None else require_integer("buffer_body", size, 1, BUFFER_BODY_MAX)
