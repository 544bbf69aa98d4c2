"""Reads the status and the history of the whole fleet; it needs nothing but the store.

Any program can use it, whether it is a worker or not. ``fleet_status_flow`` and ``fleet_history_flow`` are
flows: drive them with ``run`` or ``run_async``. A part that cannot be read is ``None``, and ``reasons`` says
why; the other parts are complete.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from comporta.breaker.admission import format_worker_name, worker_name
from comporta.errors import StateError
from comporta.fleet.event_journal import JOURNAL, encode_json, merge_events
from comporta.fleet.series import (
    CACHE_SERIES,
    MINUTE_SECONDS,
    SERVICE_SERIES,
    history_columns,
    last_minute,
    latency_series,
    series_layout,
    upstream_series,
)
from comporta.fleet.summary import upstream_summary
from comporta.fleet.validation import parse_counts, parse_failures, parse_names, parse_story, parse_summary
from comporta.flow import Flow
from comporta.limits.priority import PRIORITIES
from comporta.runtime import RUNTIME
from comporta.stores.base import KEY_ERRORS, key_text
from comporta.stores.effects import Apply, ApplyMany
from comporta.stores.failover.worker_registry import ListWorkers, LiveWorker, Worker
from comporta.stores.history import SLOT_SECONDS, SLOTS, History, ReadHistory
from comporta.stores.journal import ReadJournal
from comporta.stores.records import ABSENT, VALUE_BYTES_MAX, ReadRecord, WriteRecord
from comporta.upstream.health import upstream_health_flow

if TYPE_CHECKING:
    from comporta.stores.base import Operation, Store
    from comporta.upstream.upstream import Upstream

SUMMARIES: Final = "comporta_upstreams"
"""The summaries of all upstreams, by name."""

TURNS: Final = "comporta_turns"
"""The worker that writes the summaries now, by a digest of the upstreams' names."""

FLEET: Final = "comporta_fleet"
NAMES: Final = "upstreams"
"""The record ``FLEET:NAMES`` lists the upstreams published in the last hour, each with its latest time.

Without this record a server would have to scan all its keys.
"""

LEASES: Final = "leases"
WAITING: Final = "waiting"
"""The record ``FLEET:LEASES`` exists if a worker published leases lately; otherwise readers skip them. The
record with a worker's name after a dot holds its leases. The same applies to callers that wait: their number
by upstream and class (``WAITING_KEY``)."""

WAITING_KEY: Final = "{upstream}|{priority}"

WATCHED: Final = "watched"
"""The record ``FLEET:WATCHED`` exists while there is a reader. Workers poll it, to publish more often."""

WATCHED_SECONDS: Final = 30.0
"""For how long workers publish often after a reader has read the status."""

STORY: Final = "comporta_story"
STORY_NOW: Final = "now"

BATCH_SIZE: Final = 25
"""How many series are read or written in one call, which occupies a server for about 1 ms."""

UNREACHABLE: Final = "the shared store is unreachable"
HOUR_SECONDS: Final = SLOTS * SLOT_SECONDS
NAMES_SECONDS: Final = 3600.0
_RENEWAL_SECONDS = 60.0
_RECENT_SLOTS = 3


def upstream_summary_flow(upstream: Upstream) -> Flow[dict[str, Any]]:
    """Return the summary of an upstream of this process, from the store.

    While the store is unreachable, the summary contains what this worker knows, without the last minute.
    """
    summary = yield from summary_flow(upstream)
    reader = _StatusReader(upstream.store)
    minute: dict[str, Any] = {}
    for series in (upstream_series(upstream.name), latency_series(upstream.name)):
        history: History | None = yield from reader.apply_flow(ReadHistory(series, MINUTE_SECONDS))
        minute |= last_minute(history or History(0, []), series_layout(series))
    failures = yield from reader.failures_flow([upstream.name])
    return {**summary, "minute": minute, "last_failures": failures[upstream.name]}


def summary_flow(upstream: Upstream) -> Flow[dict[str, Any]]:
    """Return the summary of an upstream without its last minute, which readers get from the history."""
    state = yield from upstream_health_flow(upstream._policies)
    return upstream_summary(
        state,
        {},
        breaker=None if upstream.breaker is None else upstream.breaker.config,
        in_flight_max=None if upstream.permits is None else upstream.permits.max_concurrent,
    )


def published_summary_flow(store: Store, name: str) -> Flow[dict[str, Any] | None]:
    """Return what a worker published about an upstream in the last 30 s, with its latest failures."""
    record: bytes | None = yield Apply(store, ReadRecord(SUMMARIES, name))
    summary = parse_summary(name, record)
    if summary is None:
        return None
    failures = yield from _StatusReader(store).failures_flow([name])
    return {**summary, "last_failures": failures[name]}


def encode_summary(summary: Mapping[str, Any]) -> bytes:
    """Return a summary as a record; if it is too long, leave out ``holders`` and ``limits``."""
    text = encode_json(summary)
    return text if len(text) <= VALUE_BYTES_MAX else encode_json({**summary, "holders": {}, "limits": []})


def remember_names_flow(store: Store, names: Iterable[str]) -> Flow[list[str]]:
    """Add upstreams to the list of known ones for an hour; return those for which it has no room."""
    record: bytes | None = yield Apply(store, ReadRecord(FLEET, NAMES))
    now, known = RUNTIME.unix_time(), parse_names(record)
    new = [name for name in names if abs(now - known.get(name, 0.0)) >= _RENEWAL_SECONDS]
    if not new:
        return []
    lines = [
        f"{at:.0f} {name}" for name, at in known.items() if abs(now - at) < NAMES_SECONDS and name not in new
    ]
    room = VALUE_BYTES_MAX - len("\n".join(lines))
    without_room = []
    for line, name in ((f"{now:.0f} {name}", name) for name in new):
        if len(line) < room:
            lines.append(line)
            room -= 1 + len(line)
        else:
            without_room.append(name)
    text = "\n".join(lines).encode()
    yield Apply(
        store, WriteRecord(FLEET, NAMES, text, NAMES_SECONDS, record or ABSENT)
    )  # if the record changed meanwhile, the next run tries again
    return without_room


def turn_key(names: Iterable[str]) -> str:
    """Return the key under which workers with these upstreams take turns."""
    return sha256("\n".join(names).encode()).hexdigest()[:16]


def worker_key(kind: str, worker: str) -> str:
    """Return the key under ``FLEET`` of what a worker publishes about its leases or its waiting callers."""
    return f"{kind}.{worker}"


def failures_key(upstream: str) -> str:
    """Return the key under ``FLEET`` of the latest failures of an upstream."""
    return f"failures.{upstream}"


def fleet_status_flow(
    store: Store, summaries: Mapping[str, dict[str, Any]] | None = None
) -> Flow[dict[str, Any]]:
    """Return the status of the fleet: ``upstreams``, ``workers``, ``events``, ``story`` and recent counts.

    ``summaries`` are newer than those in the store; for their upstreams only the last minute is read.
    ``recent`` are the latest slots of all series, ``minutes`` the last minute of the cache and the service.
    """
    reader = _StatusReader(store)
    yield from reader.announce_flow()
    known = {**(yield from reader.summaries_flow(summaries or {})), **(summaries or {})}
    failures = yield from reader.failures_flow(known)
    histories = yield from reader.histories_flow(known, MINUTE_SECONDS)
    minutes = {label: last_minute(history, series_layout(series)) for label, series, history in histories}
    live_workers: list[LiveWorker] | None = yield from reader.apply_flow(ListWorkers())
    workers = [format_worker_name(live.worker.host, live.worker.pid) for live in live_workers or []]
    leases = yield from reader.counts_flow(LEASES, workers)
    waiting = _waiting_by_upstream((yield from reader.counts_flow(WAITING, workers or [worker_name()])))
    upstreams = [
        {
            **known[name],
            "minute": _pop_minute(minutes, name) or known[name].get("minute"),
            "waiting": waiting.get(name, {}),
            "last_failures": failures[name],
        }
        for name in sorted(known)
    ]
    entries: list[bytes] | None = yield from reader.apply_flow(ReadJournal(JOURNAL))
    story: bytes | None = yield from reader.apply_flow(ReadRecord(STORY, STORY_NOW))
    now = RUNTIME.unix_time()
    return {
        "upstreams": upstreams,
        "workers": None if live_workers is None else _worker_summaries(live_workers, upstreams, leases),
        "events": None if entries is None else merge_events(entries),
        "story": parse_story(story),
        "recent": {label: _columns(series, _recent(history), now) for label, series, history in histories},
        "minutes": minutes,
        "reasons": reader.reasons,
    }


def fleet_history_flow(store: Store) -> Flow[dict[str, Any]]:
    """Return the last hour: the history of each upstream, of the cache and of the service, slot by slot."""
    reader = _StatusReader(store)
    names = yield from reader.names_flow()
    histories = yield from reader.histories_flow(names, HOUR_SECONDS)
    now = RUNTIME.unix_time()
    return {
        "slot_seconds": SLOT_SECONDS,
        "at": now,
        "series": {label: _columns(series, history, now) for label, series, history in histories},
        "reasons": reader.reasons,
    }


class _StatusReader:
    """Reads from a store, and records why a part is missing; an unreachable store is not tried again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_unreachable = False
        self._reasons: dict[str, None] = {}

    @property
    def reasons(self) -> list[str]:
        """Why parts are missing, each reason once."""
        return list(self._reasons)

    def announce_flow(self) -> Flow[None]:
        """Notify the workers that there is a reader; a store that cannot be written is still read."""
        name = key_text(FLEET, WATCHED)
        mark = WriteRecord(FLEET, WATCHED, b"1", WATCHED_SECONDS, ABSENT, change_name=name)
        with suppress(StateError):
            yield Apply(self._store, mark)

    def apply_flow(self, operation: Operation[Any]) -> Flow[Any]:
        """Apply an operation; ``None`` if that fails."""
        if self._is_unreachable:
            return None
        try:
            return (yield Apply(self._store, operation))
        except StateError as error:
            self._record_error(error)
            return None

    def apply_all_flow(self, operations: Sequence[Operation[Any]]) -> Flow[list[Any]]:
        """Apply several operations in batches; ``None`` for each that fails."""
        replies: list[Any] = []
        for start in range(0, len(operations), BATCH_SIZE):
            batch = operations[start : start + BATCH_SIZE]
            replies += [None] * len(batch) if self._is_unreachable else (yield ApplyMany(self._store, batch))
        return [self._reply_or_none(reply) for reply in replies]

    def _reply_or_none(self, reply: Any) -> Any:
        if not isinstance(reply, StateError):
            return reply
        self._record_error(reply)
        return None

    def names_flow(self) -> Flow[list[str]]:
        """Return the upstreams that were published in the last hour."""
        record: bytes | None = yield from self.apply_flow(ReadRecord(FLEET, NAMES))
        return sorted(parse_names(record))

    def summaries_flow(self, known: Container[str]) -> Flow[dict[str, dict[str, Any]]]:
        """Return the current summaries of all upstreams except the known ones."""
        summaries: dict[str, dict[str, Any]] = {}
        for name in (yield from self.names_flow()):
            if name not in known:
                summary = parse_summary(name, (yield from self.apply_flow(ReadRecord(SUMMARIES, name))))
                if summary is not None:
                    summaries[name] = summary
        return summaries

    def counts_flow(self, kind: str, workers: Iterable[str]) -> Flow[dict[str, dict[str, int]]]:
        """Return what each worker published: its leased units, or its waiting callers."""
        counts: dict[str, dict[str, int]] = {}
        if (yield from self.apply_flow(ReadRecord(FLEET, kind))) is not None:
            for name in workers:
                record: bytes | None = yield from self.apply_flow(ReadRecord(FLEET, worker_key(kind, name)))
                counts[name] = parse_counts(record)
        return counts

    def failures_flow(self, names: Iterable[str]) -> Flow[dict[str, list[dict[str, Any]]]]:
        """Return the latest failures of upstreams, by name."""
        listed = list(names)
        records = yield from self.apply_all_flow([ReadRecord(FLEET, failures_key(name)) for name in listed])
        return {name: parse_failures(record) for name, record in zip(listed, records, strict=True)}

    def histories_flow(self, names: Iterable[str], seconds: float) -> Flow[list[tuple[str, str, History]]]:
        """Return the label, the series and the history of each upstream, of the cache and of the service."""
        histories: list[tuple[str, str, History]] = []
        upstreams = sorted(names)
        labelled = {_label(name): upstream_series(name) for name in upstreams} | {
            **{latency_series(name): latency_series(name) for name in upstreams},
            CACHE_SERIES: CACHE_SERIES,
            SERVICE_SERIES: SERVICE_SERIES,
        }
        replies = yield from self.apply_all_flow(
            [ReadHistory(series, seconds) for series in labelled.values()]
        )
        for (label, series), history in zip(labelled.items(), replies, strict=True):
            if history is not None:
                histories.append((label, series, history))
        return histories

    def _record_error(self, error: StateError) -> None:
        cause = error if isinstance(error, KEY_ERRORS) else error.__cause__
        self._is_unreachable = self._is_unreachable or not isinstance(cause, KEY_ERRORS)
        self._reasons[str(cause) if isinstance(cause, KEY_ERRORS) else UNREACHABLE] = None


def _label(name: str) -> str:
    """Return the label of an upstream; for ``cache`` and ``service`` it is the name of the series."""
    return upstream_series(name) if name in (CACHE_SERIES, SERVICE_SERIES) else name


def _pop_minute(minutes: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the last minute of an upstream, including its latencies."""
    return {**minutes.pop(_label(name), {}), **minutes.pop(latency_series(name), {})}


def _columns(series: str, history: History, now: float) -> dict[str, list[Any]]:
    return history_columns(history, series_layout(series), now)


def _recent(history: History) -> History:
    return history._replace(slots=history.slots[-_RECENT_SLOTS:])


def _waiting_by_upstream(counts: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return how many callers of all workers wait, by upstream and class, the highest class first."""
    totals: dict[str, dict[str, int]] = {}
    for published in counts.values():
        for key, count in published.items():
            upstream, _, name = key.rpartition("|")
            if name in PRIORITIES:
                by_class = totals.setdefault(upstream, {})
                by_class[name] = by_class.get(name, 0) + count
    return {
        upstream: {name: by_class[name] for name in PRIORITIES if name in by_class}
        for upstream, by_class in totals.items()
    }


def _worker_summaries(
    live_workers: Iterable[LiveWorker],
    upstreams: Sequence[Mapping[str, Any]],
    leases: Mapping[str, dict[str, int]],
) -> list[dict[str, Any]]:
    """Return the live workers with the probes, permits and leases that each of them holds."""
    return [
        {
            "name": f"{live.worker.host}:{live.worker.pid}",
            "host": live.worker.host,
            "pid": live.worker.pid,
            "started": live.worker.started,
            "last_heartbeat": round(live.age, 3),
            **_holdings(live.worker, upstreams, leases),
            "fetches": 0,
            "jobs": 0,
        }
        for live in sorted(live_workers)
    ]


def _holdings(
    worker: Worker, upstreams: Sequence[Mapping[str, Any]], leases: Mapping[str, dict[str, int]]
) -> dict[str, Any]:
    prober, holder = format_worker_name(worker.host, worker.pid), f"{worker.host}:{worker.pid}"
    return {
        "probes": [summary["name"] for summary in upstreams if prober in summary.get("probes", ())],
        "permits": {
            summary["name"]: summary["holders"][holder]
            for summary in upstreams
            if holder in summary.get("holders", ())
        },
        "leases": leases.get(prober, {}),
    }
