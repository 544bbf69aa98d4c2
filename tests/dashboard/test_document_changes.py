"""What changed between two documents is small, and a page that applies it has the newer one."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from tests.browser.sample_documents import NOW, event, failure, large_fleet, upstream, worker

from comporta.service.dashboard.document_changes import document_changes

BYTES_MAX = 200_000


def apply_changes(before: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Apply changes as the page does."""
    after = {**before, **changes["parts"], "recent": dict(before["recent"])}
    for name, columns in changes["series"].items():
        after["recent"][name] = merge_slots(before["recent"].get(name, {}), columns)
    for part, change in changes["named"].items():
        known = {item["name"]: item for item in before[part]}
        names = change["names"] or list(known)
        after[part] = [{**known.get(name, {}), **change["items"].get(name, {})} for name in names]
    if changes["events"]:
        after["events"] = [
            *changes["events"]["new"],
            *before["events"][: changes["events"]["remaining"]],
        ]
    return after


def merge_slots(before: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Replace slots by their numbers, and keep the latest three, as many as a document has."""
    both = [
        dict(zip(columns, slot, strict=True))
        for columns in (before, changed)
        for slot in zip(*columns.values(), strict=True)
    ]
    slots = sorted({slot["slots"]: slot for slot in both}.values(), key=lambda slot: slot["starts"])[-3:]
    return {name: [slot[name] for slot in slots] for name in changed}


def busy_second(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document a second later, in which every upstream and every worker changed."""
    after = deepcopy(document)
    after["at"] += 1
    for number, each in enumerate(after["upstreams"]):
        each["tokens"] += 1
        each["in_flight"] = number
        each["minute"] = {**each["minute"], "calls": 1000 + number, "ok": 900 + number}
        each["last_failures"] = [failure(number) for number in range(5)]
    for each in after["workers"]:
        each["last_heartbeat"] += 0.1
    for series in after["recent"].values():
        series["calls"] = [*series["calls"][:-1], 77]
    after["events"] = [event(-1), *after["events"][:-1]]
    return after


def test_changes__every_part_changed__give_the_newer_document() -> None:
    before = large_fleet()
    after = busy_second(before)
    changes = json.loads(json.dumps(document_changes(before, after)))
    assert apply_changes(before, changes) == after
    assert (len(changes["events"]["new"]), changes["events"]["remaining"]) == (1, 199)
    assert changes["parts"].keys() == {"at"}


def test_changes__slots_as_before_but_for_the_start__are_not_sent() -> None:
    before = large_fleet(upstreams=3)
    after = deepcopy(before)
    for series in after["recent"].values():
        series["starts"] = [start + 0.001 for start in series["starts"]]  # an age, so it jitters
    assert document_changes(before, after)["series"] == {}
    after["recent"]["up-01"]["calls"][-1] += 1
    [(name, columns)] = document_changes(before, after)["series"].items()
    assert (name, columns["slots"]) == ("up-01", before["recent"]["up-01"]["slots"][-1:])
    assert {len(column) for column in columns.values()} == {1}


def test_changes__60_upstreams_and_100_workers_all_busy__stay_below_200_kb_a_second() -> None:
    before = large_fleet()
    after = busy_second(before)
    after["recent"] |= {f"latency.{name}": columns for name, columns in after["recent"].items()}
    assert len(json.dumps(document_changes(before, after), separators=(",", ":"))) < BYTES_MAX / 2
    assert len(json.dumps(after, separators=(",", ":"))) < 2 * BYTES_MAX


@pytest.mark.parametrize(
    "change",
    [
        {"upstreams": [upstream("other"), upstream("pcp")]},
        {"workers": [worker(9), worker(1)]},
        {"workers": None},
        {"events": []},
        {"events": None},
        {"events": [event(50)]},
        {"story": {"title": "A step"}, "status": "warn"},
        {},
    ],
)
def test_changes__items_come_and_go__give_the_newer_document(change: dict[str, Any]) -> None:
    before = large_fleet(upstreams=3, workers=3)
    after = {**before, **change, "at": NOW + 1}
    assert apply_changes(before, document_changes(before, after)) == after
    back = {**before, "at": NOW + 2}
    assert apply_changes(after, document_changes(after, back)) == back
