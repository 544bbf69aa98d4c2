"""What the simulated processes of one host share."""

from __future__ import annotations

from comporta.stores.failover.machine_workers import MachineWorkers


class SimulatedCountFiles:
    """The worker counts that the processes of one host leave for those that start later."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def load(self, address: str) -> int:
        """Return the count saved last, or 1."""
        return self._counts.get(address, 1)

    def save(self, address: str, workers: int) -> None:
        """Save a count."""
        self._counts[address] = workers


class UnlistedWorkers(MachineWorkers):
    """The workers in fallback of a host that cannot list them.

    A fleet may be spread over hosts, so it must keep its limits without such a list.
    """

    def join(self) -> int:
        """Return 0: the number is unknown."""
        return 0
