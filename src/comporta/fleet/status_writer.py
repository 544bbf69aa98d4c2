"""Writes this worker's part of the fleet status to the store: counts, upstream summaries, leases, events.

Counts go into the histories (``stores/history.py``), events into the journal (``stores/journal.py``). The
summary of an upstream is the same in every worker, so in each interval only one of them writes it: the first
that takes the turn.

While the store is unreachable nothing is sent. Counts of up to ``BUFFER_SECONDS`` are written on recovery,
into the slot of that moment; older ones are dropped, because an hour's outage would otherwise look like one
peak. Counts that were being sent when the store failed may have been written, and are not sent again. Events
are sent again; readers drop duplicates. At most ``EVENTS_MAX`` events are buffered, and the journal records
how many were dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from comporta import events, fork_safety
from comporta.breaker.admission import worker_name
from comporta.errors import StateError
from comporta.fleet.event_journal import JOURNAL, encode_event, encode_json
from comporta.fleet.failures import FailurePublisher
from comporta.fleet.reader import (
    BATCH_SIZE,
    FLEET,
    LEASES,
    SUMMARIES,
    TURNS,
    WAITING,
    WAITING_KEY,
    encode_summary,
    remember_names_flow,
    summary_flow,
    turn_key,
    worker_key,
)
from comporta.fleet.series import (
    CACHE_SERIES,
    LATENCY_PREFIX,
    SERVICE_SERIES,
    event_phase,
    gauge_columns,
    latency_series,
    phase_mark,
    upstream_series,
)
from comporta.fleet.summary import largest_holders
from comporta.fleet.worker_watch import WorkerWatch
from comporta.flow import run
from comporta.limits.leases.client import leased_units
from comporta.runtime import RUNTIME
from comporta.stores.base import KEY_ERRORS
from comporta.stores.history import SLOT_SECONDS, RecordHistory
from comporta.stores.journal import APPEND_MAX, AppendToJournal
from comporta.stores.records import ABSENT, WriteRecord
from comporta.threads import snapshot

if TYPE_CHECKING:
    from comporta.fleet.counters import PendingCounts
    from comporta.stores.base import Store
    from comporta.upstream.upstream import Upstream

SUMMARY_TTL_SECONDS: Final = 30.0
"""How long a summary stays in the store if no worker renews it."""

BUFFER_SECONDS: Final = 60.0
EVENTS_MAX: Final = 200
UPSTREAMS_MAX: Final = 100
"""How many upstreams are published, the first by name."""

COUNTS_MAX: Final = 20
"""For how many limits, those with the most, a worker publishes its leased units and its waiting callers."""

COUNTS_INTERVALS: Final = 3
"""For how many intervals these counts stay in the store."""

_TURN_SHARE = 0.8
"""A turn lasts for this fraction of an interval, so that it is free again when the workers next publish."""


class EventBuffer:
    """Events that have not been sent yet, at most ``EVENTS_MAX``, and how many were dropped."""

    def __init__(self) -> None:
        self.dropped = 0
        self._events: deque[events.Event] = deque(maxlen=EVENTS_MAX)
        fork_safety.register(self)

    def __bool__(self) -> bool:
        return bool(self._events)

    def record(self, event: events.Event) -> None:
        """Add an event; a full buffer drops its oldest."""
        if len(self._events) == EVENTS_MAX:
            self.dropped += 1
        self._events.append(event)

    def snapshot(self) -> list[events.Event]:
        """Return all events, and keep them."""
        return snapshot(self._events)

    def take(self, count: int) -> list[events.Event]:
        """Remove and return the oldest events."""
        return [self._events.popleft() for _ in range(min(count, len(self._events)))]

    def put_back(self, unsent: list[events.Event]) -> None:
        """Return events that may not have been sent; without room for all of them, keep the latest."""
        room = max(0, EVENTS_MAX - len(self._events))
        self.dropped += max(0, len(unsent) - room)
        self._events.extendleft(reversed(unsent[len(unsent) - min(room, len(unsent)) :]))

    def after_fork(self) -> None:
        """Drop the parent's events in a forked child."""
        self._events.clear()
        self.dropped = 0


class FleetStatusWriter:
    """Writes what was counted and what happened since the last time.

    ``interval``: how long the records that it writes have to last.
    """

    def __init__(
        self, store: Store, upstreams: Mapping[str, Upstream], pending: PendingCounts, interval: float
    ) -> None:
        self.events = EventBuffer()
        self.workers = WorkerWatch(store)
        self._store = store
        self._upstreams = upstreams
        self._pending = pending
        self.interval = interval
        self._published: set[str] = set()
        self._failures = FailurePublisher(store)
        self._reported: set[str] = set()
        self._published_ns = store.clock.now_ns()

    def publish(self) -> None:
        """Write everything, blocking; keep what cannot be sent for the next time, unless it is too old."""
        with suppress(StateError):
            if self._is_reachable() and self._publish_all():
                self._published_ns = self._store.clock.now_ns()
                return
        self.workers.forget()
        self._drop_old_counts()

    def report_once(self, subject: str, text: str) -> None:
        """Publish an event about something that cannot be written; only the first time."""
        if subject not in self._reported and len(self._reported) < EVENTS_MAX:
            self._reported.add(subject)
            events.publish("fleet_publish_failed", subject, text)

    def _is_reachable(self) -> bool:
        """Whether the store is reachable, as far as this process has noticed."""
        return self._store.fallback is None

    def _publish_all(self) -> bool:
        """Write everything; return false if the store became unreachable, and keep what was not sent."""
        phases = self._phases_from_events()
        gauges = {}
        for name, summary in self._publish_summaries():
            series = upstream_series(name)
            gauges[series] = gauge_columns(summary)
            phases.setdefault(series, set()).add(phase_mark(summary["phase"]))
        if not self._publish_histories(gauges, phases):
            return False
        for name, upstream in self._published_upstreams().items():
            self._try(name, self._failures.publish, name, upstream)
        self._try("leases", lambda: self._publish_counts(LEASES, leased_units(self._store)))
        self._try("waiting", lambda: self._publish_counts(WAITING, self._waiting_counts()))
        self._try("workers", self.workers.check)
        self._publish_events()
        return True

    def _publish_histories(
        self, gauges: Mapping[str, dict[int, int]], phases: Mapping[str, set[tuple[int, int]]]
    ) -> bool:
        pending = dict.fromkeys([*gauges, *phases, *self._pending.series()])
        names = [series for series in pending if self._has_room_for(series)]
        batch_size = self._batch_size()
        for start in range(0, len(names), batch_size):
            if not self._is_reachable():
                return False
            batch = names[start : start + batch_size]
            operations = [
                RecordHistory(series, self._pending.drain(series), gauges.get(series), phases.get(series, ()))
                for series in batch
            ]
            for series, reply in zip(batch, self._store.apply_many(operations), strict=True):
                if isinstance(reply, StateError):
                    self._report_key_error(series, reply)
        return True

    def _batch_size(self) -> int:
        """Return how many series one call writes; 1 if batches do not help the store, to lose less."""
        return BATCH_SIZE if self._store.primary.batch_size > 1 else 1

    def _publish_counts(self, kind: str, counts: Mapping[str, int]) -> None:
        """Write this worker's leased units or its waiting callers, and once more when there are none left."""
        if counts or kind in self._published:
            value = encode_json(largest_holders(counts, COUNTS_MAX))
            ttl = COUNTS_INTERVALS * self.interval
            self._store.apply(WriteRecord(FLEET, worker_key(kind, worker_name()), value, ttl))
            self._store.apply(WriteRecord(FLEET, kind, b"1", SUMMARY_TTL_SECONDS))
        (self._published.add if counts else self._published.discard)(kind)

    def _waiting_counts(self) -> dict[str, int]:
        """Return how many callers of this worker wait, by upstream and class."""
        return {
            WAITING_KEY.format(upstream=name, priority=priority): count
            for name, upstream in self._upstreams.items()
            for priority, count in upstream._policies.waiting_by_class().items()
        }

    def _phases_from_events(self) -> dict[str, set[tuple[int, int]]]:
        """Return the phases of circuits since the last run, which no summary may have caught."""
        phases: dict[str, set[tuple[int, int]]] = {}
        for event in self.events.snapshot():
            phase = event_phase(event.kind)
            if phase and event.source in self._upstreams and RUNTIME.unix_time() - event.at < SLOT_SECONDS:
                phases.setdefault(upstream_series(event.source), set()).add(phase_mark(phase))
        return phases

    def _has_room_for(self, series: str) -> bool:
        """Whether the store keeps a history for this series; all workers decide the same."""
        series_max = self._store.primary.large_states_max
        if series_max is None:
            return True
        names = sorted(self._upstreams)
        ranked = [CACHE_SERIES, SERVICE_SERIES, *map(upstream_series, names), *map(latency_series, names)]
        has_room = series in ranked[:series_max]
        if not has_room and not series.startswith(LATENCY_PREFIX):
            text = f"its history is not stored: the table has room for {series_max} histories"
            self.report_once(series, text)
        return has_room

    def _publish_summaries(self) -> list[tuple[str, dict[str, Any]]]:
        """Write and return the summaries of this worker's upstreams, if it gets the turn."""
        upstreams = self._published_upstreams()
        if not upstreams or not self._try("turns", self._take_turn, upstreams):
            return []
        summaries = []
        for name, upstream in upstreams.items():
            summary = self._try(name, self._publish_summary, name, upstream)
            if summary is not None:
                summaries.append((name, summary))
        if summaries:
            self._try("upstreams", self._remember_names, [name for name, _ in summaries])
        return summaries

    def _published_upstreams(self) -> dict[str, Upstream]:
        return dict(sorted(self._upstreams.items())[:UPSTREAMS_MAX])

    def _take_turn(self, names: Iterable[str]) -> bool:
        """Take the turn among the workers with the same upstreams; return false if another has it."""
        ttl = _TURN_SHARE * self.interval
        return self._store.apply(WriteRecord(TURNS, turn_key(names), worker_name().encode(), ttl, ABSENT))

    def _publish_summary(self, name: str, upstream: Upstream) -> dict[str, Any] | None:
        """Write the summary of an upstream, unless the store failed and it is only this worker's view."""
        summary = run(summary_flow(upstream))
        if upstream.store.fallback is not None:
            return None
        self._store.apply(WriteRecord(SUMMARIES, name, encode_summary(summary), SUMMARY_TTL_SECONDS))
        return summary

    def _remember_names(self, names: list[str]) -> None:
        for name in run(remember_names_flow(self._store, names)):
            self.report_once("upstreams", f"too many upstream names: the fleet status will not show {name}")

    def _publish_events(self) -> None:
        while self.events and self._is_reachable():
            batch = self.events.take(APPEND_MAX)
            try:
                self._append_events(batch)
            except StateError:
                self.events.put_back(batch)  # readers drop duplicates
                raise
        if self.events.dropped and self._is_reachable():
            dropped, self.events.dropped = self.events.dropped, 0
            text = f"{dropped} events of this worker were dropped: more than {EVENTS_MAX} were waiting"
            event = events.Event(RUNTIME.unix_time(), "events_dropped", "comporta", text, "warning")
            self._append_events([event])

    def _append_events(self, batch: list[events.Event]) -> None:
        entries = [encode_event(event) for event in batch]
        self._try("events", self._store.apply, AppendToJournal(JOURNAL, *entries))

    def _try(self, subject: str, write: Callable[..., Any], *args: Any) -> Any:
        """Write something; if only its key fails, report that once and continue with the rest."""
        try:
            return write(*args)
        except StateError as error:
            self._report_key_error(subject, error)
        except Exception as error:  # a bug that concerns one subject must not stop the others
            self.report_once(subject, f"the fleet status is incomplete: {error!r:.200}")
        return None

    def _report_key_error(self, subject: str, error: StateError) -> None:
        """Report an error that concerns one key; raise any other."""
        cause = error if isinstance(error, KEY_ERRORS) else error.__cause__
        if not isinstance(cause, KEY_ERRORS):
            raise error
        self.report_once(subject, f"the fleet status is incomplete: {cause}")

    def _drop_old_counts(self) -> None:
        """Drop counts that are too old to be written into the current slot."""
        if self._store.clock.now_ns() - self._published_ns > BUFFER_SECONDS * 1e9:
            self._published_ns = self._store.clock.now_ns()
            for series in self._pending.series():
                self._pending.drain(series)
