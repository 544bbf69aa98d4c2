"""The whole fleet, read back from the state alone: by any worker, or by a command line that is none.

Both verbs are flows, so that a service awaits what a command line waits for. A part that cannot be had now is
``None``, and ``reasons`` says why; the others are there all the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from comporta.breaker.admission import owner_named
from comporta.errors import StateError
from comporta.flow import Flow
from comporta.stores.effects import OF_ONE_KEY, Apply, ApplyAll
from comporta.stores.history import SLOT_SECONDS, SLOTS, History, Recall
from comporta.stores.journal import Latest
from comporta.stores.records import ABSENT, VALUE_BYTES_MAX, Read, Write
from comporta.stores.workers import Roll, Sign, Worker
from comporta.upstream.standing import standing
from comporta.watching.card import card
from comporta.watching.readable import card_of, event_of, leases_of, names_of, story_of
from comporta.watching.series import (
    CACHE,
    MINUTE_SECONDS,
    SERVICE,
    columns_of,
    layout_of,
    minute_of,
    series_of,
)

if TYPE_CHECKING:
    from comporta.stores.base import Operation, Store
    from comporta.upstream.upstream import Upstream

STANDINGS: Final = "comporta_upstreams"
"""The cards of all upstreams, by name."""

TURNS: Final = "comporta_turns"
"""Whose turn it is to tell how upstreams stand, by a digest of their names: who has the same takes turns."""

FLEET: Final = "comporta_fleet"
NAMES: Final = "upstreams"
"""Under these two: the names of all upstreams that were told of in the last hour, each with when that was.

A server would have to look through all its keys to find them.
"""

LEASES: Final = "leases"
"""Under ``FLEET``: there if anybody told of leases lately, else no worker is asked about; and for each worker
that did, with its name after a dot, what it has on lease."""

STORY: Final = "comporta_story"
STORY_NOW: Final = "now"
JOURNAL: Final = "events"

AT_ONCE: Final = 25
"""So many series are told or recalled in one call: a server is held up by it for a millisecond or so."""

OUT_OF_REACH: Final = "the shared state is out of reach"
HOUR_SECONDS: Final = SLOTS * SLOT_SECONDS
NAMES_SECONDS: Final = 3600.0
_RENEWED_SECONDS = 60.0
_RECENT_SLOTS = 3
_SAME_SECONDS = 3.0
"""What happens to all workers is told by each of them within so many seconds."""


def own_card(upstream: Upstream) -> Flow[dict[str, Any]]:
    """Return the card of an upstream of this process, as the shared state has it now.

    While that is out of reach it shows what this worker knows alone, and nothing of the last minute.
    """
    shown = yield from bare_card(upstream)
    reader = _Reader(upstream.store)
    history: History | None = yield from reader.asking(Recall(series_of(upstream.name), MINUTE_SECONDS))
    return {**shown, "minute": minute_of(history or History(0, []))}


def bare_card(upstream: Upstream) -> Flow[dict[str, Any]]:
    """Return that card without its last minute, which whoever looks reads anyway."""
    state = yield from standing(upstream.parts)
    return card(
        state,
        {},
        breaker=None if upstream.breaker is None else upstream.breaker.config,
        in_flight_max=None if upstream.permits is None else upstream.permits.max_concurrent,
    )


def written(shown: Mapping[str, Any]) -> bytes:
    """Return a card as it is kept; one that is too long loses the names of those who hold permits."""
    text = _packed(shown)
    return text if len(text) <= VALUE_BYTES_MAX else _packed({**shown, "holders": {}})


def remembering(store: Store, names: Iterable[str]) -> Flow[list[str]]:
    """See that upstreams are among those that are known, for an hour from about now.

    Returns those for which there is no room.
    """
    kept: bytes | None = yield Apply(store, Read(FLEET, NAMES))
    now, known = time.time(), names_of(kept)
    new = [name for name in names if abs(now - known.get(name, 0.0)) >= _RENEWED_SECONDS]
    if not new:
        return []
    lines = [
        f"{at:.0f} {name}" for name, at in known.items() if abs(now - at) < NAMES_SECONDS and name not in new
    ]
    room = VALUE_BYTES_MAX - len("\n".join(lines))
    left_out = []
    for line, name in ((f"{now:.0f} {name}", name) for name in new):
        if len(line) < room:
            lines.append(line)
            room -= 1 + len(line)
        else:
            left_out.append(name)
    text = "\n".join(lines).encode()
    yield Apply(store, Write(FLEET, NAMES, text, NAMES_SECONDS, kept or ABSENT))  # else next time
    return left_out


def turn_of(names: Iterable[str]) -> str:
    """Return under which name workers that have these upstreams take turns."""
    return sha256("\n".join(names).encode()).hexdigest()[:16]


def leases_key(worker: str) -> str:
    """Return where under ``FLEET`` it stands what a worker has on lease."""
    return f"{LEASES}.{worker}"


def looking(store: Store, cards: Mapping[str, dict[str, Any]] | None = None) -> Flow[dict[str, Any]]:
    """Return how the fleet stands: ``upstreams``, ``workers``, ``events``, ``story``, and lately.

    ``cards`` are those that the caller knows better than the state; the last minute of each is read here.
    ``recent`` are the latest slots of all series, ``minutes`` the last minute of the cache and the service.
    """
    reader = _Reader(store)
    shown = {**(yield from reader.cards(cards or {})), **(cards or {})}
    lately = yield from reader.histories(shown, MINUTE_SECONDS)
    minutes = {label: minute_of(history, layout_of(series)) for label, series, history in lately}
    upstreams = [
        {**shown[name], "minute": minutes.pop(_label(name), shown[name].get("minute"))}
        for name in sorted(shown)
    ]
    signs: list[Sign] | None = yield from reader.asking(Roll())
    leases = yield from reader.leases(signs or [])
    entries: list[bytes] | None = yield from reader.asking(Latest(JOURNAL))
    story: bytes | None = yield from reader.asking(Read(STORY, STORY_NOW))
    now = time.time()
    return {
        "upstreams": upstreams,
        "workers": None if signs is None else _workers(signs, upstreams, leases),
        "events": None if entries is None else happened(entries),
        "story": story_of(story),
        "recent": {label: _columns(series, _recent(history), now) for label, series, history in lately},
        "minutes": minutes,
        "reasons": reader.reasons,
    }


def recalling(store: Store) -> Flow[dict[str, Any]]:
    """Return the last hour: each figure of each upstream, of the cache and of the service, slot by slot."""
    reader = _Reader(store)
    names = yield from reader.names()
    found = yield from reader.histories(names, HOUR_SECONDS)
    now = time.time()
    return {
        "slot_seconds": SLOT_SECONDS,
        "at": now,
        "series": {label: _columns(series, history, now) for label, series, history in found},
        "reasons": reader.reasons,
    }


def happened(entries: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the events of a journal, the newest first; what several workers told of one thing is one.

    ``workers`` is how many told it, ``worker`` the first of them. A worker that lost the state meanwhile may
    have told the same twice.
    """
    found: list[dict[str, Any]] = []
    latest: dict[tuple[str, str], tuple[dict[str, Any], set[str]]] = {}
    told = [{**event, "workers": 1} for event in map(event_of, dict.fromkeys(entries)) if event is not None]
    for event in sorted(told, key=lambda event: event["at"]):
        what = event["kind"], event["source"]
        same, tellers = latest.get(what, (event, set()))
        if tellers and event["worker"] not in tellers and event["at"] - same["at"] <= _SAME_SECONDS:
            tellers.add(event["worker"])
            same["workers"] = len(tellers)
            continue
        latest[what] = (event, {event["worker"]})
        found.append(event)
    return found[::-1]


class _Reader:
    """Asks a state, and notes why it does not answer: once it is out of reach it is not asked again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._gone = False
        self._reasons: dict[str, None] = {}

    @property
    def reasons(self) -> list[str]:
        """Why something is missing, each reason once."""
        return list(self._reasons)

    def asking(self, operation: Operation[Any]) -> Flow[Any]:
        """Ask; nothing where there is no answer."""
        if self._gone:
            return None
        try:
            return (yield Apply(self._store, operation))
        except StateError as error:
            self._note(error)
            return None

    def asking_all(self, operations: Sequence[Operation[Any]]) -> Flow[list[Any]]:
        """Ask several things at once; nothing in place of an answer that there is not."""
        found: list[Any] = []
        for start in range(0, len(operations), AT_ONCE):
            some = operations[start : start + AT_ONCE]
            found += [None] * len(some) if self._gone else (yield ApplyAll(self._store, some))
        return [self._answer(reply) for reply in found]

    def _answer(self, reply: Any) -> Any:
        if not isinstance(reply, StateError):
            return reply
        self._note(reply)
        return None

    def names(self) -> Flow[list[str]]:
        """Return the upstreams that were told of in the last hour."""
        kept: bytes | None = yield from self.asking(Read(FLEET, NAMES))
        return sorted(names_of(kept))

    def cards(self, known: Container[str]) -> Flow[dict[str, dict[str, Any]]]:
        """Return the cards of upstreams that are told of now, but for those that are known."""
        found: dict[str, dict[str, Any]] = {}
        for name in (yield from self.names()):
            if name not in known:
                shown = card_of(name, (yield from self.asking(Read(STANDINGS, name))))
                if shown is not None:
                    found[name] = shown
        return found

    def leases(self, signs: Iterable[Sign]) -> Flow[dict[str, dict[str, int]]]:
        """Return what each worker has on lease, by its name."""
        found: dict[str, dict[str, int]] = {}
        if (yield from self.asking(Read(FLEET, LEASES))) is not None:
            for sign in signs:
                name = owner_named(sign.worker.host, sign.worker.pid)
                found[name] = leases_of((yield from self.asking(Read(FLEET, leases_key(name)))))
        return found

    def histories(self, names: Iterable[str], seconds: float) -> Flow[list[tuple[str, str, History]]]:
        """Return what was told of upstreams, the cache and the service: its label, its series, and it."""
        found: list[tuple[str, str, History]] = []
        labelled = {_label(name): series_of(name) for name in sorted(names)} | {
            CACHE: CACHE,
            SERVICE: SERVICE,
        }
        recalled = yield from self.asking_all([Recall(series, seconds) for series in labelled.values()])
        for (label, series), history in zip(labelled.items(), recalled, strict=True):
            if history is not None:
                found.append((label, series, history))
        return found

    def _note(self, error: StateError) -> None:
        cause = error if isinstance(error, OF_ONE_KEY) else error.__cause__
        self._gone = self._gone or not isinstance(cause, OF_ONE_KEY)
        self._reasons[str(cause) if isinstance(cause, OF_ONE_KEY) else OUT_OF_REACH] = None


def _label(name: str) -> str:
    """Return what an upstream is called among series; the cache and the service have two of the names."""
    return series_of(name) if name in (CACHE, SERVICE) else name


def _columns(series: str, history: History, now: float) -> dict[str, list[Any]]:
    return columns_of(history, layout_of(series), now)


def _recent(history: History) -> History:
    return history._replace(slots=history.slots[-_RECENT_SLOTS:])


def _workers(
    signs: Iterable[Sign], upstreams: Sequence[Mapping[str, Any]], leases: Mapping[str, dict[str, int]]
) -> list[dict[str, Any]]:
    """Return who is alive, and which probes, permits and leases each of them holds."""
    return [
        {
            "name": f"{sign.worker.host}:{sign.worker.pid}",
            "host": sign.worker.host,
            "pid": sign.worker.pid,
            "started": sign.worker.started,
            "heard": round(sign.age, 3),
            **_held(sign.worker, upstreams, leases),
            "fetches": 0,
            "jobs": 0,
        }
        for sign in sorted(signs)
    ]


def _held(
    worker: Worker, upstreams: Sequence[Mapping[str, Any]], leases: Mapping[str, dict[str, int]]
) -> dict[str, Any]:
    prober, holder = owner_named(worker.host, worker.pid), f"{worker.host}:{worker.pid}"
    return {
        "probes": [shown["name"] for shown in upstreams if prober in shown.get("probes", ())],
        "permits": {
            shown["name"]: shown["holders"][holder]
            for shown in upstreams
            if holder in shown.get("holders", ())
        },
        "leases": leases.get(prober, {}),
    }


def _packed(shown: Mapping[str, Any]) -> bytes:
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
