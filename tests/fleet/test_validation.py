"""Malformed records in the store cost one line or one summary, and never the whole page."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.fleet.conftest import DriveFlow
from tests.support import command, redis_store

from comporta import Upstream
from comporta.fleet import FleetCounters, FleetPublisher, fleet_history_flow, fleet_status_flow
from comporta.fleet.event_journal import JOURNAL
from comporta.fleet.reader import (
    FLEET,
    NAMES,
    STORY,
    STORY_NOW,
    SUMMARIES,
    encode_summary,
    upstream_summary_flow,
)
from comporta.fleet.validation import parse_counts, parse_event, parse_names, parse_story, parse_summary
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import RecordHeartbeat, Worker
from comporta.stores.journal import AppendToJournal, ReadJournal
from comporta.stores.memory import MemoryStore
from comporta.stores.records import WriteRecord
from comporta.testing import ManualClock, Server

EVENT = {"at": 1.0, "kind": "k", "source": "s", "text": "t", "severity": "info", "worker": "w"}
DEEP = b"[" * 4000
HALF = b'{"scenario": "\\ud800"}'
HUGE = 10**400

SERIES = {"pncp", "pcp", "latency.pncp", "latency.pcp", "cache", "service"}


def entry(**others: Any) -> bytes:
    return json.dumps({**EVENT, **others}).encode()


def summary_record(**others: Any) -> bytes:
    upstream = Upstream("pncp", "10/s", max_concurrent=5, state=MemoryStore(ManualClock(1_800_000_000)))
    return encode_summary({**run(upstream_summary_flow(upstream)), **others})


@pytest.mark.parametrize(
    "record",
    [
        *(entry(at=at) for at in ("x", None, [1], -1, 1e20, float("nan"), float("inf"), HUGE)),
        *(entry(kind=[]), entry(worker={}), entry(text=5), b'{"at": 1}', DEEP, b"\xff", b"x" * 5000),
        entry().replace(b'"t"', b'"\\ud800"'),
    ],
)
def test_parse_event__malformed__returns_none(record: bytes) -> None:
    assert parse_event(record) is None


def test_parse_event__extra_fields__are_removed() -> None:
    assert parse_event(entry(token="secret")) == EVENT  # noqa: S106 - not a password; the field must be dropped


@pytest.mark.parametrize(
    "others",
    [
        {"name": "another"},
        {"name": None},
        {"phase": "unknown"},
        {"phase": []},
        {"probes": None},
        {"probes": [1]},
        {"holders": ["h:1"]},
        {"holders": {"h:1": []}},
        {"limit": None},
        {"tokens": HUGE},
        {"until": 1e20},
        {"minute": "x"},
        {"limits": {}},
        {"limits": [5]},
        {"limits": [{"name": "tokens"}]},
        {"limits": [{"name": "t", "tokens": 1, "capacity": 1, "limit": 1, "original": 1}] * 17},
    ],
)
def test_parse_summary__wrong_field__returns_none(others: dict[str, Any]) -> None:
    assert parse_summary("pncp", summary_record()) is not None
    assert parse_summary("pncp", summary_record(**others)) is None


@pytest.mark.parametrize("record", [None, b"", b"{}", DEEP, b"[]", HALF])
def test_parse_summary__absent_or_not_json__returns_none(record: bytes | None) -> None:
    assert parse_summary("pncp", record) is None


def test_parse_story__step_out_of_range__is_left_out() -> None:
    assert parse_story(b'{"scenario": "outage", "of": 1000000000, "step": 1, "more": 1}') == {
        "scenario": "outage",
        "step": 1,
    }
    assert (parse_story(HALF), parse_story(None)) == (None, None)


def test_parse_names__malformed_lines__are_skipped() -> None:
    malformed = f"² pncp\n{'9' * 400} pncp\nx pncp\n17\n5 no name\n17 pcp\n"
    assert parse_names(malformed.encode()) == {"pcp": 17.0}


def test_status__malformed_records_of_every_type__shows_the_rest(store: Store, drive: DriveFlow) -> None:
    store.apply(WriteRecord(FLEET, NAMES, "² malformed\n1800000000 pncp\n1800000000 pcp".encode(), 60))
    store.apply(WriteRecord(SUMMARIES, "pncp", summary_record(), 60))
    store.apply(WriteRecord(SUMMARIES, "pcp", summary_record(), 60))
    store.apply(WriteRecord(STORY, STORY_NOW, DEEP, 60))
    store.apply(AppendToJournal(JOURNAL, b"[" * 1000, entry(at=None), entry()))
    status = drive(fleet_status_flow(store))
    assert [summary["name"] for summary in status["upstreams"]] == ["pncp"]
    assert [event["text"] for event in status["events"]] == ["t"]
    assert status["story"] is None
    assert drive(fleet_history_flow(store))["series"].keys() == SERIES


def test_publish__malformed_name_record__is_rewritten(clock: ManualClock, counters: FleetCounters) -> None:
    store = MemoryStore(clock)
    store.apply(WriteRecord(FLEET, NAMES, "² malformed".encode(), 60))
    FleetPublisher(store, {"pncp": Upstream("pncp", "10/s", state=store)}, counters).publish()
    assert [summary["name"] for summary in run(fleet_status_flow(store))["upstreams"]] == ["pncp"]


def test_status__corrupt_hashes__shows_what_can_be_encoded(valkey: Server, counters: FleetCounters) -> None:
    clock = ManualClock(1_800_000_000)
    with redis_store(valkey, clock) as store:
        FleetPublisher(store, {"pncp": Upstream("pncp", "10/s", state=store)}, counters).publish()
        command(valkey, "HSET", "comporta_history:upstream.pncp", "180000000", "9" * 5000)
        documents = [run(fleet_status_flow(store)), run(fleet_history_flow(store))]
        assert documents[0]["upstreams"][0]["minute"]["calls"] == 2**32 - 1
    assert msgspec.json.encode(documents)


def test_status__invalid_worker_entry__shows_the_valid_workers(valkey: Server) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        store.apply(RecordHeartbeat(Worker("h", 7, 1, 2)))
        for malformed in ("garbage", "h:x:1:2", "h:1:1:z"):
            command(valkey, "ZADD", "comporta_workers", "1800000000000000", malformed)
        status = run(fleet_status_flow(store))
    assert [worker["name"] for worker in status["workers"]] == ["h:7"]
    assert status["reasons"] == []


@pytest.mark.parametrize("counter", ["inf", "nan", "1e18", "-5", "2.5", "x", "-inf"])
def test_journal__corrupt_counter__expires_and_recovers(valkey: Server, counter: str) -> None:
    with redis_store(valkey, ManualClock(1_800_000_000)) as store:
        command(valkey, "HSET", "comporta_journal:events", "next", counter)
        assert store.apply(ReadJournal(JOURNAL)) == []
        store.apply(AppendToJournal(JOURNAL, entry()))
        assert store.apply(ReadJournal(JOURNAL)) == [entry()]


@pytest.mark.parametrize(
    "record", [None, b"no json", b"[]", b'{"a": "3", "b": -1, "c": 0, "d": 1e400, "e": null}']
)
def test_parse_counts__malformed__are_empty(record: bytes | None) -> None:
    assert parse_counts(record) == {}


def test_parse_counts__some_valid__keeps_those() -> None:
    assert parse_counts(b'{"pncp": 3, "pcp": []}') == {"pncp": 3}
