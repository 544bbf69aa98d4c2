"""The latest failures of each upstream in all workers: one record per upstream.

A worker adds the failures that it has seen since the last time, in one read and one write; a worker without
new failures does neither. If another worker writes at the same time, the next run tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from comporta.breaker.admission import worker_name
from comporta.fleet.event_journal import encode_json
from comporta.fleet.reader import FLEET, failures_key
from comporta.fleet.summary import reason_text
from comporta.fleet.validation import parse_failures
from comporta.stores.records import ABSENT, VALUE_BYTES_MAX, ReadRecord, WriteRecord
from comporta.upstream.recent_failures import FAILURES_MAX

if TYPE_CHECKING:
    from comporta.stores.base import Store
    from comporta.upstream.recent_failures import RecordedFailure
    from comporta.upstream.upstream import Upstream

FAILURES_SECONDS: Final = 3600.0
"""For how long the failures of an upstream are kept after the last one."""


class FailurePublisher:
    """Writes the new failures of this worker's upstreams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._published: dict[str, RecordedFailure] = {}

    def publish(self, name: str, upstream: Upstream) -> None:
        """Add the failures of an upstream that have not been published yet."""
        latest = upstream._policies.failures.latest()
        if not latest or latest[-1] is self._published.get(name):
            return
        record = self._store.apply(ReadRecord(FLEET, failures_key(name)))
        value = _merge(record, latest)
        if self._store.apply(
            WriteRecord(FLEET, failures_key(name), value, FAILURES_SECONDS, record or ABSENT)
        ):
            self._published[name] = latest[-1]


def _merge(record: bytes | None, latest: Sequence[RecordedFailure]) -> bytes:
    """Return a record with the latest failures of all workers, the newest first; as many as fit."""
    own = [
        {"at": round(at, 6), "text": reason_text(text), "worker": worker_name()}
        for at, text in reversed(latest)
    ]
    known = [failure for failure in parse_failures(record) if failure not in own]
    failures = sorted([*own, *known], key=lambda failure: -float(failure["at"]))[:FAILURES_MAX]
    while len(value := _encode(failures)) > VALUE_BYTES_MAX:
        failures.pop()
    return value


def _encode(failures: list[dict[str, Any]]) -> bytes:
    return encode_json({"failures": failures})
