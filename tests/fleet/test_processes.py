"""Several worker processes, and a reader that is none of them, on every type of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fleet.jobs import CAPACITY
from tests.processes.fleet import open_state, start_workers
from tests.support import wait_until

from comporta.fleet import fleet_history_flow, fleet_status_flow
from comporta.flow import run
from comporta.stores.base import Store

CALLS, WORKERS = 20, 2


def wait_for_status(store: Store, is_complete: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read the status of the fleet until it is complete."""
    status: dict[str, Any] = {}

    def read() -> bool:
        status.update(run(fleet_status_flow(store)))
        return is_complete(status)

    wait_until(read)
    return status


def test_fleet__several_workers_publish__a_non_worker_reads_everything(state: str) -> None:
    def is_complete(status: dict[str, Any]) -> bool:
        summaries = {summary["name"]: summary for summary in status["upstreams"]}
        has_all = {"pncp", *(f"own-{number}" for number in range(WORKERS))} == summaries.keys()
        reports = sum(event["workers"] for event in status["events"])  # one event or two: starts may differ
        return has_all and summaries["pncp"]["in_flight"] == WORKERS and reports == WORKERS

    with (
        open_state(state.replace("?timeout=5", "")) as store,
        start_workers(WORKERS, "publish_calls", state=state, calls=CALLS) as workers,
    ):
        pids = {one.go().result() for one in workers}
        status = wait_for_status(store, is_complete)
        assert {one["pid"] for one in status["workers"]} == pids
        assert [one["permits"] for one in status["workers"]] == [{"pncp": 1}] * WORKERS
        assert {event["kind"] for event in status["events"]} == {"deployed"}
        assert all(one.go().result() == "done" for one in workers)
        series = run(fleet_history_flow(store))["series"]["pncp"]
        assert sum(series["calls"]) == sum(series["ok"]) == WORKERS * (CALLS + 1)


def test_fleet__workers_with_leases__are_listed_with_their_leases(state: str) -> None:
    def all_have_leases(status: dict[str, Any]) -> bool:
        return [list(one["leases"]) for one in status["workers"] or ()] == [["pncp"]] * WORKERS

    with (
        open_state(state.replace("?timeout=5", "")) as store,
        start_workers(WORKERS, "publish_leases", state=state) as workers,
    ):
        pids = {one.go().result() for one in workers}
        status = wait_for_status(store, all_have_leases)
        assert {one["pid"] for one in status["workers"]} == pids
        assert all(0 < one["leases"]["pncp"] < CAPACITY for one in status["workers"])
        assert all(one.go().result() == "done" for one in workers)
