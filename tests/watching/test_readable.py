"""What somebody else wrote into the state: a line or a card less, and never the end of the page."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support import command, redis_store
from tests.watching.conftest import Drives

from comporta import Upstream
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.journal import Latest, Note
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Write
from comporta.stores.workers import Beat, Worker
from comporta.testing import ManualClock, Server
from comporta.watching import Tallies, Teller, looking, recalling
from comporta.watching.fleet import FLEET, JOURNAL, NAMES, STANDINGS, STORY, STORY_NOW, own_card, written
from comporta.watching.readable import card_of, event_of, leases_of, names_of, story_of

EVENT = {"at": 1.0, "kind": "k", "source": "s", "text": "t", "severity": "info", "worker": "w"}
DEEP = b"[" * 4000
HALF = b'{"scenario": "\\ud800"}'
HUGE = 10**400


def entry(**others: Any) -> bytes:
    return json.dumps({**EVENT, **others}).encode()


def shown(**others: Any) -> bytes:
    upstream = Upstream("pncp", "10/s", max_concurrent=5, state=MemoryStore(ManualClock(1_800_000_000)))
    return written({**run(own_card(upstream)), **others})


@pytest.mark.parametrize(
    "kept",
    [
        *(entry(at=at) for at in ("x", None, [1], -1, 1e20, float("nan"), float("inf"), HUGE)),
        *(entry(kind=[]), entry(worker={}), entry(text=5), b'{"at": 1}', DEEP, b"\xff", b"x" * 5000),
        entry().replace(b'"t"', b'"\\ud800"'),
    ],
)
def test_event__that_is_none__is_nothing(kept: bytes) -> None:
    assert event_of(kept) is None


def test_event__with_more_than_belongs_to_it__is_told_without() -> None:
    assert event_of(entry(token="secret")) == EVENT  # noqa: S106 - that is the point


@pytest.mark.parametrize(
    "others",
    [
        {"name": "another"},
        {"name": None},
        {"phase": "ajar"},
        {"phase": []},
        {"probes": None},
        {"probes": [1]},
        {"holders": ["h:1"]},
        {"holders": {"h:1": []}},
        {"limit": None},
        {"tokens": HUGE},
        {"until": 1e20},
        {"minute": "x"},
    ],
)
def test_card__not_in_its_form__is_none(others: dict[str, Any]) -> None:
    assert card_of("pncp", shown()) is not None
    assert card_of("pncp", shown(**others)) is None


@pytest.mark.parametrize("kept", [None, b"", b"{}", DEEP, b"[]", HALF])
def test_card__that_nobody_wrote__is_none(kept: bytes | None) -> None:
    assert card_of("pncp", kept) is None


def test_story__of_a_thousand_million_steps__is_told_without_their_number() -> None:
    assert story_of(b'{"scenario": "outage", "of": 1000000000, "step": 1, "more": 1}') == {
        "scenario": "outage",
        "step": 1,
    }
    assert (story_of(HALF), story_of(None)) == (None, None)


def test_names__beside_what_is_no_time__are_those_that_are_left() -> None:
    strange = f"² pncp\n{'9' * 400} pncp\nx pncp\n17\n5 no name\n17 pcp\n"
    assert names_of(strange.encode()) == {"pcp": 17.0}


def test_looking__strange_records_of_every_kind__shows_the_rest(store: Store, drive: Drives) -> None:
    store.apply(Write(FLEET, NAMES, "² odd\n1800000000 pncp\n1800000000 pcp".encode(), 60))
    store.apply(Write(STANDINGS, "pncp", shown(), 60))
    store.apply(Write(STANDINGS, "pcp", shown(), 60))
    store.apply(Write(STORY, STORY_NOW, DEEP, 60))
    store.apply(Note(JOURNAL, b"[" * 1000, entry(at=None), entry()))
    found = drive(looking(store))
    assert [card["name"] for card in found["upstreams"]] == ["pncp"]
    assert [event["text"] for event in found["events"]] == ["t"]
    assert found["story"] is None
    assert drive(recalling(store))["series"].keys() == {"pncp", "pcp", "cache", "service"}


def test_turn__names_that_make_no_sense__are_written_anew(clock: ManualClock, tallies: Tallies) -> None:
    store = MemoryStore(clock)
    store.apply(Write(FLEET, NAMES, "² odd".encode(), 60))
    Teller(store, {"pncp": Upstream("pncp", "10/s", state=store)}, tallies).turn()
    assert [card["name"] for card in run(looking(store))["upstreams"]] == ["pncp"]


def test_looking__hashes_that_somebody_wrote_to__shows_what_can_be_sent(
    valkey: Server, tallies: Tallies
) -> None:
    clock = ManualClock(1_800_000_000)
    with redis_store(valkey, clock) as store:
        Teller(store, {"pncp": Upstream("pncp", "10/s", state=store)}, tallies).turn()
        command(valkey, "HSET", "comporta_history:upstream.pncp", "180000000", "9" * 5000)
        found = [run(looking(store)), run(recalling(store))]
        assert found[0]["upstreams"][0]["minute"]["calls"] == 2**32 - 1
    assert msgspec.json.encode(found)


def test_looking__somebody_who_is_no_worker_is_listed__shows_the_workers(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        store.apply(Beat(Worker("h", 7, 1, 2)))
        for strange in ("garbage", "h:x:1:2", "h:1:1:z"):
            command(valkey, "ZADD", "comporta_workers", "1800000000000000", strange)
        found = run(looking(store))
    assert [worker["name"] for worker in found["workers"]] == ["h:7"]
    assert found["reasons"] == []


@pytest.mark.parametrize("following", ["inf", "nan", "1e18", "-5", "2.5", "x", "-inf"])
def test_journal__counter_that_somebody_wrote__ends_and_goes_on(valkey: Server, following: str) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        command(valkey, "HSET", "comporta_journal:events", "next", following)
        assert store.apply(Latest(JOURNAL)) == []
        store.apply(Note(JOURNAL, entry()))
        assert store.apply(Latest(JOURNAL)) == [entry()]


@pytest.mark.parametrize(
    "kept", [None, b"no json", b"[]", b'{"a": "3", "b": -1, "c": 0, "d": 1e400, "e": null}']
)
def test_leases__that_make_no_sense__are_none(kept: bytes | None) -> None:
    assert leases_of(kept) == {}


def test_leases__with_some_that_make_sense__are_those() -> None:
    assert leases_of(b'{"pncp": 3, "pcp": []}') == {"pncp": 3}
