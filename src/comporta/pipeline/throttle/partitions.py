"""What a process remembers of the partitions of a throttle: who waits, and when it last tried to climb.

Nothing of this decides anything: the buckets are in the state. So a partition for which nobody waits may be
forgotten at any time, and at :data:`PARTITIONS_MAX` the one that was remembered for longest is.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from comporta import forks
from comporta.limits.key import state_key
from comporta.pipeline.places import Place
from comporta.pipeline.throttle.levels import Levels, TakeBoth, Waits

PARTITIONS_MAX = 10_000
"""How many partitions a process remembers beyond those in which somebody waits."""

WAITERS_MAX = 100_000
"""How many may wait for one throttle in one process; the next one is refused at once."""


class Line:
    """Those who wait for one thing, in the order in which they came; changed only under the book's lock.

    Anybody may leave from anywhere at the same small cost: a hundred thousand may be cancelled at once.
    """

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: OrderedDict[Place, None] = OrderedDict()

    @property
    def first(self) -> Place | None:
        """Whose turn it is; for who holds the lock, since a line that changes meanwhile has no first."""
        return next(iter(self.places), None)

    def join(self, place: Place) -> None:
        """Stand at the end, unless there already."""
        self.strike()
        self.places[place] = None

    def strike(self) -> None:
        """Strike those at the head who went with their event loops, and have whoever is first then look."""
        first = self.first
        if first is not None and first.gone:
            del self.places[first]
            self.call_first()

    def living_first(self) -> Place | None:
        """Return the first who did not go with its event loop; those who did are struck."""
        while (first := self.first) is not None and first.gone:
            del self.places[first]
        return first

    def leave(self, place: Place) -> None:
        """Go away, served or not, and have whoever is first then look."""
        was_first = self.first is place
        self.places.pop(place, None)
        if was_first:
            self.call_first()

    def call_first(self) -> None:
        """Call the first who can still hear it; who cannot is struck, or nobody behind it would be served."""
        while (first := self.first) is not None and not first.call():
            del self.places[first]


class Partition:
    """One partition: the name of its limit, its line, and when this process last tried to have it climb."""

    __slots__ = ("_levels", "_parts", "line", "name", "text", "tried_us")

    def __init__(self, levels: Levels, text: str) -> None:
        self._levels = levels
        self._parts = levels.parts(text)
        self.text = text
        self.name = levels.partition_name(text)
        self.line = Line()
        self.tried_us: int | None = None

    def taking(self, cost: int) -> TakeBoth:
        """Return what takes ``cost``."""
        return TakeBoth(self._levels, self.text, cost, self._parts)


class Book:
    """The partitions of one throttle, and the line of those whom only the global limit keeps waiting.

    Who stands at the head of a partition's line and is held up by the global limit alone stands in that
    second line too: so a large cost is not overtaken for ever by small ones of other partitions.
    """

    def __init__(self, levels: Levels) -> None:
        self.lock = Lock()
        self.whole = Line()
        self.waiting = 0
        self._levels = levels
        self._partitions: dict[object, Partition] = {}
        self.known = self._partitions.get
        forks.register(self)

    def __len__(self) -> int:
        """Return how many partitions are remembered."""
        return len(self._partitions)

    def after_fork(self) -> None:
        """Leave those who wait to the parent."""
        forks.renew(self.lock)
        self.whole.places.clear()
        self._partitions.clear()
        self.waiting = 0

    def partition(self, name: str) -> Partition:
        """Return what is remembered of a partition.

        Who looks by the name itself (``known``) finds only names that are kept as they are written.
        """
        text = state_key(name)
        key = text if text == name else (text,)
        with self.lock:
            found = self._partitions.get(key)
            if found is None:
                found = self._partitions[key] = Partition(self._levels, text)
            if len(self._partitions) > PARTITIONS_MAX + self.waiting:
                self._forget()
            return found

    def join(self, partition: Partition, place: Place) -> bool:
        """Stand at the end of a partition's line; false if too many wait already."""
        with self.lock:
            if self.waiting >= WAITERS_MAX:
                return False
            self.waiting += 1
            partition.line.join(place)
            return True

    def is_turn_of(self, partition: Partition, place: Place) -> bool:
        """Whether it is this one's turn in both lines; the head of its partition stands in the other, too."""
        with self.lock:
            partition.line.strike()
            if partition.line.first is not place:
                return False
            self.whole.strike()
            if self.whole.first in (None, place):
                return True
            self.whole.join(place)
            return False

    def held_up(self, place: Place, waits: Waits) -> None:
        """Stand in the line for the global limit if that alone holds one up, and in nobody's way if not."""
        with self.lock:
            if waits.partition_us:
                self.whole.leave(place)
            else:
                self.whole.join(place)

    def leave(self, partition: Partition, place: Place) -> None:
        """Leave both lines.

        Whoever is now at the head of the partition takes a place behind those who wait for the global limit,
        without being woken for it: by far the most wait for that one.
        """
        with self.lock:
            self.waiting -= 1
            was_first = partition.line.first is place
            partition.line.places.pop(place, None)
            self.whole.leave(place)
            if was_first and self.whole.places and (following := partition.line.living_first()) is not None:
                self.whole.join(following)
            elif was_first:
                partition.line.call_first()

    def _forget(self) -> None:
        """Forget the one that was remembered for longest and has nobody waiting."""
        for key, partition in self._partitions.items():
            if not partition.line.places:
                del self._partitions[key]
                return
