"""Reports of what this worker granted without the store, kept until the store has acknowledged them.

A report carries the worker's token and a number, so that the store applies it once, however often it is sent:
a report whose reply was lost is sent again. Reports outlive the outage in which they were made. If the store
fails again before it acknowledges them, they are sent after the next outage, or with the next heartbeat.

Only the heartbeat's thread uses this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from comporta.errors import StateMovingError
from comporta.stores.base import Operation, Store
from comporta.stores.failover.local_share import LocalShare

REPORTS_MAX = 200_000
"""The most pending reports, twice the keys of a share; beyond that the oldest are dropped."""


class ReportQueue:
    """The reports that the store has not acknowledged, oldest first."""

    def __init__(self) -> None:
        self._pending: list[Operation[Any]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return how many reports are pending."""
        return len(self._pending)

    def collect(self, local_share: LocalShare, reporter: str) -> None:
        """Add what a share granted since the last call."""
        self._add(local_share.collect_reports(), reporter)

    def send(self, primary: Store) -> None:
        """Send all reports in order. The errors of single keys do not stop the others.

        Those whose keys a cluster is moving are kept for the next time.
        """
        size, kept = primary.batch_size, list[Operation[Any]]()
        try:
            while self._pending:
                batch = self._pending[:size]
                replies = primary.apply_many(batch)
                kept += [
                    operation
                    for operation, reply in zip(batch, replies, strict=True)
                    if isinstance(reply, StateMovingError)
                ]
                del self._pending[:size]
        finally:
            self._pending[:0] = kept

    def clear(self) -> None:
        """Drop all reports: in a forked child they are the parent's."""
        self._pending.clear()

    def _add(self, operations: Iterable[Operation[Any]], reporter: str) -> None:
        for operation in operations:
            self._count += 1
            self._pending.append(operation.as_report(reporter, self._count))
        del self._pending[:-REPORTS_MAX]
