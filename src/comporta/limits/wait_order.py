"""The order in which the waiters of one key are served: classes first, then turns between owners.

Within a class the owners take turns, and the waiters of one owner are served in order of arrival. An owner
with 200 waiters therefore delays another with one waiter by at most one turn. Waiters without an owner count
as the waiters of one owner. The module is a data structure: it does not wait, and the queue that uses it
provides the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from comporta.limits.priority import Caller

Units = Any
"""The units that a waiter requests: a number, or an object that adds up like one (``GroupUnits``)."""

Pace = Callable[[Units], int]
"""Returns the earliest time at which the limit can have granted some units to the waiters of a key."""


class QueuedWaiter(Protocol):
    """The attributes of a waiter on which the order depends."""

    rank: int
    owner: str | None
    since_us: int
    deadline_us: int
    cost: Units

    def __hash__(self) -> int: ...


W = TypeVar("W", bound=QueuedWaiter)


class ClassOrder(Generic[W]):
    """The waiters of one class."""

    __slots__ = ("arrivals", "turns", "units")

    def __init__(self) -> None:
        self.arrivals: OrderedDict[W, None] = OrderedDict()
        self.units: Units = 0
        self.turns: OrderedDict[str | None, OrderedDict[W, None]] = OrderedDict()

    def add(self, waiter: W) -> None:
        """Add a waiter to the end of its owner's queue; a new owner gets the last turn."""
        self.arrivals[waiter] = None
        self.units += waiter.cost
        self.turns.setdefault(waiter.owner, OrderedDict())[waiter] = None

    def remove(self, waiter: W) -> None:
        """Remove a waiter; if it was first, the next owner is first."""
        had_turn = self.first() is waiter
        del self.arrivals[waiter]
        self.units -= waiter.cost
        own = self.turns[waiter.owner]
        del own[waiter]
        if not own:
            del self.turns[waiter.owner]
        elif had_turn:
            self.turns.move_to_end(waiter.owner)

    def first(self) -> W:
        """Return the waiter whose turn it is."""
        return next(iter(next(iter(self.turns.values()))))


class WaitOrder(Generic[W]):
    """The waiters of one key. The order is empty only while it is not in use.

    The limit grants their requests in order, at its ``pace``. The pace is ``None`` if no caller has tried
    yet, because the limit may still grant a whole burst.
    """

    __slots__ = ("_by_rank", "_size", "pace")

    def __init__(self) -> None:
        self.pace: Pace | None = None
        self._by_rank: dict[int, ClassOrder[W]] = {}
        self._size = 0

    def __len__(self) -> int:
        """Return how many waiters there are."""
        return self._size

    def __contains__(self, waiter: W) -> bool:
        """Whether a waiter has neither left nor been dropped."""
        waiters = self._by_rank.get(waiter.rank)
        return waiters is not None and waiter in waiters.arrivals

    def count_by_rank(self) -> dict[int, int]:
        """Return how many waiters of each class there are."""
        return {rank: len(waiters.arrivals) for rank, waiters in self._by_rank.items()}

    def add(self, waiter: W) -> None:
        """Add a waiter."""
        self._by_rank.setdefault(waiter.rank, ClassOrder()).add(waiter)
        self._size += 1

    def remove(self, waiter: W) -> None:
        """Remove a waiter."""
        waiters = self._by_rank[waiter.rank]
        waiters.remove(waiter)
        self._size -= 1
        if not waiters.arrivals:
            del self._by_rank[waiter.rank]

    def first(self) -> W:
        """Return the waiter that is served next."""
        return self._by_rank[min(self._by_rank)].first()

    def oldest_since_us(self, rank: int, now_us: int) -> int:
        """Return since when the oldest waiter of a class has been waiting; now, if none waits."""
        waiters = self._by_rank.get(rank)
        return now_us if waiters is None else next(iter(waiters.arrivals)).since_us

    def units_ahead(self, caller: Caller) -> Units | None:
        """Return how many units are granted before a new caller; ``None`` if owners take turns with it."""
        own = self._by_rank.get(caller.rank)
        if own is not None and set(own.turns) != {caller.owner}:
            return None
        return sum(waiters.units for rank, waiters in self._by_rank.items() if rank <= caller.rank)

    def late_waiters(self, pace: Pace) -> list[W]:
        """Return the waiters that cannot be served before their deadlines.

        Waiters of classes in which owners take turns are left out.
        """
        late: list[W] = []
        ahead: Units = 0
        for rank in sorted(self._by_rank):
            waiters = self._by_rank[rank]
            if len(waiters.turns) > 1:
                ahead += waiters.units
                continue
            for waiter in waiters.arrivals:
                if pace(ahead + waiter.cost) > waiter.deadline_us:
                    late.append(waiter)
                else:
                    ahead += waiter.cost
        return late

    def precedes(self, rank: int) -> bool:
        """Whether a waiter of this class or a higher one waits."""
        return min(self._by_rank) <= rank
