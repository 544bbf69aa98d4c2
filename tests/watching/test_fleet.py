"""The whole fleet from the state alone."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from tests.stores.switchable import by_hand
from tests.support import command, redis_store
from tests.watching.conftest import Drives

from comporta import Upstream
from comporta.breaker.admission import owner
from comporta.errors import StateUnavailableError
from comporta.flow import run
from comporta.limits.holding import Permit, Room, TakePermit
from comporta.stores.base import Store
from comporta.stores.journal import Note
from comporta.stores.memory import MemoryStore
from comporta.stores.records import VALUE_BYTES_MAX, Read, Write
from comporta.stores.workers import Beat, Worker
from comporta.testing import ManualClock, Server
from comporta.watching import Tallies, Teller, looking, recalling
from comporta.watching.fleet import FLEET, NAMES, OUT_OF_REACH, happened, own_card, remembering, written


def told(store: Store, tallies: Tallies, *names: str, calls: int = 0) -> dict[str, Upstream]:
    upstreams = {name: Upstream(name, "10/s", max_concurrent=5, state=store) for name in names}
    for upstream in upstreams.values():
        for _ in range(calls):
            upstream.sync.call(lambda: None)
    Teller(store, upstreams, tallies).turn()
    return upstreams


def event(at: float, worker: str = "a:1", **others: Any) -> bytes:
    plain = {"kind": "breaker_opened", "source": "pncp", "text": "open", "severity": "warning", **others}
    return json.dumps({"at": at, "worker": worker, **plain}).encode()


def test_looking__nothing_was_ever_told__shows_an_empty_fleet(store: Store, drive: Drives) -> None:
    found = drive(looking(store))
    assert found == {
        "upstreams": [],
        "workers": [],
        "events": [],
        "story": None,
        "reasons": [],
        "recent": {"cache": _nothing("hits", "stale", "misses"), "service": _nothing(*_SERVICE)},
        "minutes": {"cache": {"hits": 0, "stale": 0, "misses": 0}, "service": dict.fromkeys(_SERVICE, 0)},
    }


_SERVICE = ("requests", "errors", "refused")


def _nothing(*names: str) -> dict[str, list[int]]:
    return {name: [] for name in ("starts", "slots", *names)}


def test_looking__workers_told_of_their_upstreams__shows_them_with_who_holds_what(
    store: Store, drive: Drives, tallies: Tallies
) -> None:
    worker = Worker.here()
    pcp = Upstream("pcp", "10/s", max_concurrent=5, state=store)
    store.apply(TakePermit(Room("pcp", 5, 60_000_000), Permit.new()))
    store.apply(Beat(worker))
    store.apply(Note("events", event(5.0)))
    store.apply(Write("comporta_story", "now", b'{"scenario": "outage"}', 600))
    told(store, tallies, "pncp", calls=3)
    Teller(store, {"pcp": pcp}, tallies).turn()
    found = drive(looking(store))
    assert [(card["name"], card["minute"]["calls"]) for card in found["upstreams"]] == [
        ("pcp", 0),
        ("pncp", 3),
    ]
    [listed] = found["workers"]
    assert listed == {
        "name": f"{worker.host}:{worker.pid}",
        "host": worker.host,
        "pid": worker.pid,
        "started": worker.started,
        "heard": 0.0,
        "fetches": 0,
        "jobs": 0,
        "probes": [],
        "permits": {"pcp": 1},
        "leases": {},
    }
    assert found["events"][0]["at"] == 5.0
    assert found["story"] == {"scenario": "outage"}
    assert found["recent"]["pncp"]["calls"] == [3]
    assert json.loads(json.dumps(found)) == found


def test_looking__cards_of_ones_own__go_before_those_that_were_told(
    clock: ManualClock, tallies: Tallies
) -> None:
    store = MemoryStore(clock)
    upstreams = told(store, tallies, "pncp", "pcp", calls=1)
    mine = {**run(own_card(upstreams["pncp"])), "in_words": "mine"}
    found = run(looking(store, {"pncp": mine}))["upstreams"]
    assert [(card["name"], card["in_words"]) for card in found] == [
        ("pcp", "Closed: calls pass."),
        ("pncp", "mine"),
    ]


def test_looking__probe_that_is_out__is_shown_with_its_worker(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    store.apply(Beat(Worker.here()))
    card = {"name": "pncp", "probes": [owner()], "minute": None}
    [listed] = run(looking(store, {"pncp": card}))["workers"]
    assert (listed["probes"], listed["permits"]) == (["pncp"], {})


def test_looking__state_out_of_reach__shows_what_is_known_and_says_so(
    drive: Drives, clock: ManualClock
) -> None:
    store, primary = by_hand(clock)
    primary.error = StateUnavailableError("no route")
    card = {"name": "pncp", "probes": [], "minute": {"calls": 1}}
    found = drive(looking(store, {"pncp": card}))
    assert found["upstreams"] == [card]
    assert (found["workers"], found["events"], found["story"]) == (None, None, None)
    assert found["reasons"] == [OUT_OF_REACH]
    assert primary.calls == 1, "once it is out of reach it is not asked again"
    assert drive(recalling(store))["series"] == {}


def test_looking__one_key_is_somebody_elses__shows_the_rest(valkey: Server, tallies: Tallies) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        told(store, tallies, "pncp", calls=2)
        command(valkey, "SET", "comporta_journal:events", "mine")
        command(valkey, "SET", "comporta_history:cache", "mine")
        found = run(looking(store))
    assert found["events"] is None
    assert found["upstreams"][0]["minute"]["calls"] == 2
    assert [reason.partition(" holds")[0] for reason in found["reasons"]] == [
        "one of 'comporta_history:cache'",
        "one of 'comporta_journal:events'",
    ]


def test_looking__what_others_wrote_by_hand__is_left_out(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    names = f"{time.time():.0f} pncp\n{time.time():.0f} pcp\nyesterday old\n17\n5 no name\n"
    store.apply(Write(FLEET, NAMES, names.encode(), 60))
    store.apply(Write("comporta_upstreams", "pncp", b"no json", 60))
    store.apply(Write("comporta_upstreams", "pcp", b'["a list"]', 60))
    store.apply(Note("events", b"no json", b"{}", event(1.0)))
    found = run(looking(store))
    assert found["upstreams"] == []
    assert len(found["events"]) == 1


def test_recalling__hour_of_an_upstream__is_there_slot_by_slot(
    store: Store, drive: Drives, clock: ManualClock, tallies: Tallies
) -> None:
    upstreams = told(store, tallies, "pncp", calls=2)
    clock.advance(100)
    tallies.counter("http_requests", 3, status="200")
    tallies.counter("upstream_calls", 1, upstream="pncp", outcome="open")
    Teller(store, upstreams, tallies).turn()
    found = drive(recalling(store))
    assert found["slot_seconds"] == 10
    assert list(found["series"]) == ["pncp", "cache", "service"]
    pncp = found["series"]["pncp"]
    assert (pncp["calls"], pncp["open"], pncp["limit"][0]) == ([2, 1], [0, 1], 10.0)
    assert pncp["starts"][1] - pncp["starts"][0] == pytest.approx(100)
    assert pncp["slots"][1] - pncp["slots"][0] == 10
    assert pncp["starts"][1] == pytest.approx(found["at"], abs=60)
    assert found["series"]["service"]["requests"] == [3]
    assert json.loads(json.dumps(found)) == found


def test_recalling__upstream_called_like_the_cache__has_a_name_of_its_own(
    clock: ManualClock, tallies: Tallies
) -> None:
    store = MemoryStore(clock)
    told(store, tallies, "cache", calls=1)
    found = run(recalling(store))["series"]
    assert found["upstream.cache"]["calls"] == [1]
    assert found["cache"]["hits"] == []
    [card] = run(looking(store))["upstreams"]
    assert card["minute"]["calls"] == 1


def test_events__told_by_several_workers__are_one() -> None:
    found = happened(
        [
            event(100.0, "a:1"),
            event(11.0, "c:3"),
            event(10.5, "b:2", text="open for 29.9 s"),
            event(10.0, "a:1", text="open for 30 s"),
            event(10.2, "b:2", kind="breaker_closed"),
        ]
    )
    assert [(one["at"], one["kind"], one["workers"]) for one in found] == [
        (100.0, "breaker_opened", 1),
        (10.2, "breaker_closed", 1),
        (10.0, "breaker_opened", 3),
    ]
    assert (found[2]["worker"], found[2]["text"]) == ("a:1", "open for 30 s")


def test_events__told_twice_by_one_worker__happened_twice() -> None:
    assert [one["at"] for one in happened([event(11.0), event(10.0)])] == [11.0, 10.0]


def test_events__noted_twice_because_an_answer_was_lost__happened_once() -> None:
    assert [one["at"] for one in happened([event(10.0), event(11.0), event(10.0)])] == [11.0, 10.0]


def test_card__too_long_to_be_kept__loses_who_holds_permits() -> None:
    card = {"name": "pncp", "why": "é" * 1000, "holders": {f"{'h' * 60}:{n}": 1 for n in range(40)}}
    assert len(written(card)) <= VALUE_BYTES_MAX
    assert json.loads(written(card)) == {**card, "holders": {}}
    short = {**card, "why": ""}
    assert json.loads(written(short)) == short


def test_names__told_again_within_a_minute__are_left_as_they_are(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    now = time.time()
    kept = f"{now - 30:.0f} new\n{now - 1000:.0f} old\n{now - 4000:.0f} gone".encode()
    store.apply(Write(FLEET, NAMES, kept, 60))
    assert run(remembering(store, ["new"])) == []
    assert store.apply(Read(FLEET, NAMES)) == kept
    assert run(remembering(store, ["new", "old"])) == []
    renewed = store.apply(Read(FLEET, NAMES)) or b""
    assert {line.split()[1] for line in renewed.decode().splitlines()} == {"new", "old"}


def test_names__more_than_fit__are_those_that_came_first(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    names = [f"{number:02}{'x' * 98}" for number in range(50)]
    left_out = run(remembering(store, names))
    kept = store.apply(Read(FLEET, NAMES)) or b""
    assert [line.split()[1] for line in kept.decode().splitlines()] + left_out == names
    assert VALUE_BYTES_MAX - 112 < len(kept) <= VALUE_BYTES_MAX
    assert run(remembering(store, names[-1:])) == names[-1:]


def test_looking__one_series_is_somebody_elses__shows_the_others(
    valkey: Server, clock: ManualClock, tallies: Tallies
) -> None:
    with redis_store(valkey, clock) as store:
        told(store, tallies, "pncp", "pcp", calls=1)
        command(valkey, "SET", "comporta_history:upstream.pcp", "something else")
        found = run(looking(store))
        assert [card["minute"].get("calls") for card in found["upstreams"]] == [None, 1]
        [reason] = found["reasons"]
        assert "comporta_history:upstream.pcp" in reason
