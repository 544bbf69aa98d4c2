"""Several processes, and one that only looks: it sees all of them, whatever the state is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.processes import fleet
from tests.processes.fleet import opened, started
from tests.watching import worker
from tests.watching.worker import CAPACITY

from comporta.flow import run
from comporta.watching import looking, recalling

PATIENCE_SECONDS = 60.0
CALLS, WORKERS = 20, 2


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "PROGRAM", worker.__name__)


def seen(look: Callable[[], dict[str, Any]], enough: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look until there is enough to see; the machine may be slow."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not enough(found := look()):
        assert time.monotonic() < ends, found
        time.sleep(0.05)
    return found


def test_fleet__several_workers_tell__one_who_is_none_sees_all_of_it(state: str) -> None:
    def look() -> dict[str, Any]:
        return run(looking(store))

    def together(found: dict[str, Any]) -> bool:
        cards = {card["name"]: card for card in found["upstreams"]}
        everybody = {"pncp", *(f"own-{number}" for number in range(WORKERS))} == cards.keys()
        noted = sum(event["workers"] for event in found["events"])  # one or two: they may start far apart
        return everybody and cards["pncp"]["in_flight"] == WORKERS and noted == WORKERS

    with (
        opened(state.replace("?timeout=5", "")) as store,
        started(WORKERS, "told", state=state, calls=CALLS) as workers,
    ):
        pids = {one.go().answer() for one in workers}
        found = seen(look, together)
        assert {one["pid"] for one in found["workers"]} == pids
        assert [one["permits"] for one in found["workers"]] == [{"pncp": 1}] * WORKERS
        assert {event["kind"] for event in found["events"]} == {"deployed"}
        assert all(one.go().answer() == "over" for one in workers)
        series = run(recalling(store))["series"]["pncp"]
        assert sum(series["calls"]) == sum(series["ok"]) == WORKERS * (CALLS + 1)


def test_fleet__workers_with_leases__are_shown_with_what_each_has_in_hand(state: str) -> None:
    def look() -> dict[str, Any]:
        return run(looking(store))

    def all_lease(found: dict[str, Any]) -> bool:
        return [list(one["leases"]) for one in found["workers"] or ()] == [["pncp"]] * WORKERS

    with (
        opened(state.replace("?timeout=5", "")) as store,
        started(WORKERS, "leasing", state=state) as workers,
    ):
        pids = {one.go().answer() for one in workers}
        found = seen(look, all_lease)
        assert {one["pid"] for one in found["workers"]} == pids
        assert all(0 < one["leases"]["pncp"] < CAPACITY for one in found["workers"])
        assert all(one.go().answer() == "over" for one in workers)
