"""The budget that bounds the retries of all workers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.retry.conftest import RunFlow
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import command, redis_store, wait_until

from comporta.errors import StateAuthError, StateTypeError, StateUnavailableError
from comporta.events import Event, listen
from comporta.flow import run
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.retry import Budget, RetryBudget
from comporta.retry.budget import BUDGET, CALLS_MAX, SPACE, UNNAMED, BudgetOperation, BudgetUsage
from comporta.stores.base import State, Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock, Server


@pytest.fixture
def published_events() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = listen(events.append)
    yield events
    stop()


def count_calls(budget: RetryBudget, times: int) -> None:
    for _ in range(times):
        budget._count_call()


def granted_retries(budget: RetryBudget, run_flow: RunFlow = run, attempts: int = 60) -> int:
    """Ask for retries, and return how many are granted."""
    return sum(run_flow(budget._withdraw_flow()) for _ in range(attempts))


def test_budget__hardly_any_calls__grants_the_minimum(store: Store, run_flow: RunFlow) -> None:
    budget = RetryBudget("pncp", store)
    count_calls(budget, 20)
    assert granted_retries(budget, run_flow, 15) == 10


def test_budget__many_calls__grants_a_fifth_of_them(store: Store, run_flow: RunFlow) -> None:
    budget = RetryBudget("pncp", store)
    count_calls(budget, 100)
    assert granted_retries(budget, run_flow, 25) == 20
    count_calls(budget, 5)
    assert granted_retries(budget, run_flow, 3) == 1
    assert run_flow(budget._usage_flow()) == BudgetUsage(False, 105, 21)


def test_budget__two_workers__counts_the_calls_of_both(store: Store) -> None:
    one, other = (RetryBudget("pncp", store) for _ in range(2))
    count_calls(one, 100)
    count_calls(other, 150)
    assert granted_retries(one) == 20
    assert granted_retries(other) == 30
    assert granted_retries(one) == 0


def test_budget__another_name__is_another_budget(store: Store) -> None:
    assert granted_retries(RetryBudget("pncp", store)) == 10
    assert granted_retries(RetryBudget("pcp", store)) == 10


def test_budget__time_passes__recovers_slice_by_slice(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store, Budget(least=4))
    for _ in range(2):
        assert [run(budget._withdraw_flow()) for _ in range(2)] == [True, True]
        clock.advance(30)
    assert granted_retries(budget) == 2  # the first two have left the window
    clock.advance(60)
    assert granted_retries(budget) == 4


def test_budget__calls_older_than_the_window__no_longer_count(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store)
    count_calls(budget, 200)
    assert run(budget._withdraw_flow())
    clock.advance(60)
    assert granted_retries(budget) == 10


def test_reporter__calls_not_reported_within_the_window__are_dropped(
    store: Store, clock: ManualClock
) -> None:
    budget = RetryBudget("pncp", store)
    count_calls(budget, 200)
    clock.advance(60)
    assert granted_retries(budget) == 10


def test_reporter__call_longer_than_a_slice__counts(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store)
    count_calls(budget, 200)
    clock.advance(15)
    assert granted_retries(budget) == 40


def test_reporter__private_store__counts_at_most_a_slice_late(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    budget = RetryBudget("pncp", store)
    for _ in range(30):
        count_calls(budget, 10)
        clock.advance(10)
    count_calls(budget, 10)
    usage = run(budget._usage_flow())
    assert (usage.calls, usage.retries) == (70, 0)


def test_budget__ratio_and_minimum_zero__grants_nothing(store: Store) -> None:
    budget = RetryBudget("pncp", store, Budget(ratio=0, least=0))
    count_calls(budget, 1000)
    assert granted_retries(budget) == 0


def test_budget__another_window_under_the_same_name__starts_empty(store: Store) -> None:
    assert granted_retries(RetryBudget("pncp", store, Budget(window=60))) == 10
    assert granted_retries(RetryBudget("pncp", store, Budget(window=30))) == 10


def test_budget__exhausted__counts_each_refusal_and_publishes_one_event(
    published_events: list[Event],
) -> None:
    budget = RetryBudget("pncp", MemoryStore(), Budget(least=1))
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        count_calls(budget, 3)
        assert granted_retries(budget, attempts=4) == 1
    finally:
        use_metrics(before)
    assert granted_retries(budget, attempts=1) == 0
    assert metrics.value("retry_budget_exhausted", budget="pncp") == 3
    [event] = published_events
    assert event[1:] == (
        *("retry_budget_exhausted", "pncp"),
        *("no more retries: 1 for 3 calls in the last 60 s", "warning"),
    )


def test_budget__metrics_sink_raises__still_decides() -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise RuntimeError(name)

        histogram = counter

    before = use_metrics(Broken())
    try:
        assert granted_retries(RetryBudget("pncp", MemoryStore(), Budget(least=1)), attempts=3) == 1
    finally:
        use_metrics(before)


def test_reporter__calls_counted__the_heartbeat_reports_them_every_ten_seconds() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    budget = RetryBudget("pncp", store)
    assert budget._reporter.heartbeat_operation() is None
    count_calls(budget, 100)
    run_heartbeat(store)
    assert run(RetryBudget("pncp", primary)._usage_flow()).calls == 100
    count_calls(budget, 1)
    assert budget._reporter.heartbeat_operation() is None  # it has just reported
    clock.advance(10)
    run_heartbeat(store)
    assert run(RetryBudget("pncp", primary)._usage_flow()).calls == 101
    count_calls(budget, 1)
    clock.advance(70)
    assert budget._reporter.heartbeat_operation() is None  # the call is older than the window
    store.close()


def test_fallback__store_unreachable__uses_own_calls_and_the_share_of_the_minimum() -> None:
    store, primary = manual_failover()
    store.heartbeat.worker_count.record(4)
    primary.error = StateUnavailableError("gone")
    budget = RetryBudget("pncp", store)
    assert granted_retries(budget) == 3
    count_calls(budget, 100)
    assert granted_retries(budget) == 17
    store.close()


def test_fallback__no_room_for_another_key__grants_nothing() -> None:
    outage = Outage(0.0, 0, "gone", 2, full=True)
    operation = BudgetOperation("pncp", Budget(), 5, retry=True).fallback(outage)
    assert MemoryStore().apply(operation) == BudgetUsage(False, 0, 0)


def test_budget__store_refuses_access__grants_nothing_and_publishes_an_event(
    published_events: list[Event],
) -> None:
    store, primary = manual_failover()
    primary.error = StateAuthError("no")
    budget = RetryBudget("pncp", store)
    assert granted_retries(budget, attempts=3) == 0
    assert [(event.kind, event.severity) for event in published_events] == [
        ("retry_budget_unusable", "error")
    ]
    store.close()


def test_reporter__after_a_fork__leaves_the_counted_calls_to_the_parent() -> None:
    budget = RetryBudget("pncp", MemoryStore())
    count_calls(budget, 100)
    budget._reporter.after_fork()
    assert budget._reporter.calls == 0
    assert run(budget._usage_flow()).calls == 0


def test_redis__hash__is_readable_and_expires_after_the_window(server: Server, clock: ManualClock) -> None:
    with redis_store(server, clock) as store:
        budget = RetryBudget("pncp", store)
        count_calls(budget, 5)
        assert run(budget._withdraw_flow())
    assert b"180000000 5 1" in command(server, "HGETALL", "retry_budget:pncp")
    left_ms = int(command(server, "PTTL", "retry_budget:pncp")[1:])
    assert 0 < left_ms <= 60_000


@pytest.mark.parametrize(
    "value", ["garbage", "", "nan 1 1", "180000000 1e9 1e9", "180000000 -1 -1", "9" * 400]
)
def test_redis__corrupt_value__counts_as_empty(server: Server, clock: ManualClock, value: str) -> None:
    with redis_store(server, clock) as store:
        command(server, "HSET", "retry_budget:pncp", "0", value)
        assert granted_retries(RetryBudget("pncp", store), attempts=12) == 10


def test_redis__wrong_type_at_the_key__raises_naming_it_and_affects_no_other(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "retry_budget:pncp", "x")
        bad, good = (BudgetOperation(name, Budget(), 1, retry=True) for name in ("pncp", "pcp"))
        error, spent = store.apply_many([bad, good])
        assert isinstance(error, StateTypeError)
        assert "retry_budget:pncp" in str(error)
        assert spent == BudgetUsage(True, 1, 1)


def test_redis__no_clock_given__uses_the_server_time(server: Server) -> None:
    with redis_store(server) as store:
        assert granted_retries(RetryBudget("pncp", store), attempts=12) == 10


def test_redis__wrong_type_at_the_key__falls_back_to_the_local_share(server: Server) -> None:
    with redis_store(server) as primary:
        command(server, "SET", "retry_budget:pncp", "x")
        store = FailoverStore.wrap(primary, primary.address)
        assert granted_retries(RetryBudget("pncp", store), attempts=12) == 10
        store.close()


def test_reporter__all_calls_succeed__other_workers_see_them(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    with redis_store(valkey) as primary:
        store = FailoverStore.wrap(primary, primary.address)
        budget = RetryBudget("pncp", store)
        count_calls(budget, 100)
        elsewhere = RetryBudget("pncp", primary)
        wait_until(lambda: run(elsewhere._usage_flow()).calls >= 100)
        store.close()


WORKER = """
import sys
from comporta.flow import run
from comporta.retry import Budget, RetryBudget
from comporta.stores.registry import open_store

budget = RetryBudget("pncp", open_store(sys.argv[1]), Budget(window=300))
for _ in range(25):
    budget._count_call()
print(sum(run(budget._withdraw_flow()) for _ in range(12)))
"""


def test_fleet__four_processes__share_one_budget(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, f"{valkey.url}?timeout=5&connect_timeout=60"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    grants = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert 10 <= sum(grants) <= 20  # 20 % of 100 calls, if all were reported by then


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"ratio": -0.1}, ValueError, "ratio must be 0 to 100, got -0.1"),
        ({"ratio": "x"}, TypeError, "ratio must be a number, got 'x'"),
        ({"least": -1}, ValueError, "least must be 0 to 1000000, got -1"),
        ({"least": 1.5}, TypeError, "least must be an int, got 1.5"),
        ({"least": True}, TypeError, "least must be an int, got True"),
        ({"window": 0.5}, ValueError, "window must be 1 to 300, got 0.5"),
        ({"window": 301}, ValueError, "window must be 1 to 300, got 301"),
    ],
)
def test_budget__bad_input__names_field_range_and_value(
    given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as raised:
        Budget(**given)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("field", "lowest", "highest"), [("ratio", 0, 100), ("least", 0, 1_000_000), ("window", 1, 300)]
)
def test_budget__bounds_of_a_field__are_allowed_and_named(field: str, lowest: int, highest: int) -> None:
    for allowed in (lowest, highest):
        assert getattr(Budget(**{field: allowed}), field) == allowed
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ValueError, match=f"^{field} must be {lowest} to {highest}, got {value}$"):
            Budget(**{field: value})


def test_operation__first_and_last_slice_of_the_window__both_count() -> None:
    budget = Budget(ratio=0.5, least=0, window=60)
    state: State | None = None
    for number, calls in ((100, 4), (105, 6)):
        [state], usage = BudgetOperation("n", budget, calls, retry=False).step([state], number * 10_000_000)
    assert usage == BudgetUsage(False, 10, 0)
    assert state is not None
    assert state[0] == 10_000_000
    ask = BudgetOperation("n", budget, 0, retry=True)
    [granted], usage = ask.step([state], 105 * 10_000_000)
    assert usage == BudgetUsage(True, 10, 1)
    assert granted is not None
    assert sorted(granted[at : at + 3] for at in range(1, 19, 3))[-2:] == [(100, 4, 0), (105, 6, 1)]
    assert ask.step([state], 106 * 10_000_000)[1] == BudgetUsage(True, 6, 1), "the first slice has left"
    assert ask.step([state], 104 * 10_000_000)[1].calls == 4, "a slice of the future does not count"
    peek = BudgetOperation("n", budget, 0, retry=False)
    assert peek.step([state], 105 * 10_000_000) == ([None], BudgetUsage(False, 10, 0))


def test_operation__as_many_retries_as_allowed__grants_no_other() -> None:
    state: State | None = None
    granted = []
    for _ in range(4):
        [new], usage = BudgetOperation("n", Budget(ratio=0.0, least=3), 0, retry=True).step([state], 10**9)
        state = new or state
        granted.append(usage.granted)
    assert granted == [True, True, True, False]


def test_operation__more_calls_than_a_report_holds__counts_what_it_holds() -> None:
    operation = BudgetOperation("n", Budget(ratio=0.25, window=12), CALLS_MAX + 1, retry=True)
    assert operation.script_args() == [1_000_000_000, 1, 10, 250_000, 2_000_000]


def test_fallback__some_workers__each_get_their_part_of_the_minimum() -> None:
    operation = BudgetOperation("n", Budget(least=10), 7, retry=True)
    for workers, least in ((1, 10), (3, 4), (11, 1)):
        fallback = operation.fallback(Outage(0.0, 0, "gone", workers))
        assert fallback.script_args() == [7, 1, least, 200_000, 10_000_000]
        assert fallback.state_keys == operation.state_keys
    full = operation.fallback(Outage(0.0, 0, "gone", 2, full=True))
    assert full.script_args()[:2] == [0, 0]
    assert full.state_keys == operation.state_keys


def test_operation__reply_of_a_script__is_parsed() -> None:
    operation = BudgetOperation("n", Budget(), 0, retry=True)
    assert operation.parse([1, b"12", b"3"]) == BudgetUsage(True, 12, 3)
    assert operation.parse([0, 12, 3]) == BudgetUsage(False, 12, 3)
    with pytest.raises(StateTypeError, match="retry_budget:n"):
        operation.parse([b"WRONGTYPE Operation against a key holding the wrong kind of value", 0, 0])
    with pytest.raises(StateUnavailableError, match=r"retry_budget:n.* cannot be used: OOM \ufffd"):
        operation.parse([b"OOM \xff", 0, 0])


@pytest.mark.parametrize(("window", "every"), [(1, 1.0), (12, 2.0), (300, 10.0)])
def test_reporter__any_window__reports_every_slice_between_one_and_ten_seconds(
    window: float, every: float
) -> None:
    clock = ManualClock(1_800_000_000)
    reporter = RetryBudget("n", MemoryStore(clock), Budget(window=window))._reporter
    times = []
    for tenth in range(301):
        reporter.count_call()
        if reporter.heartbeat_operation() is not None:
            times.append(tenth / 10)
        clock.advance(0.1)
    assert {round(later - earlier, 1) for earlier, later in pairwise(times)} == {every}


def test_reporter__calls_of_a_slice__are_kept_until_they_would_leave_the_window() -> None:
    for late_s, calls in ((59.9, 3), (60.0, 0)):
        clock = ManualClock(1_800_000_000)
        reporter = RetryBudget("n", MemoryStore(clock))._reporter
        for _ in range(3):
            reporter.count_call()
        clock.advance(late_s)
        assert reporter.take_operation(retry=False).script_args()[0] == calls
        assert reporter.calls == 0


def test_reporter__calls_counted__starts_again_with_each_slice() -> None:
    clock = ManualClock(0)
    reporter = RetryBudget("n", MemoryStore(clock))._reporter
    assert reporter.calls == 0
    counts = []
    for seconds in (5, 5, 9):
        reporter.count_call()
        counts.append(reporter.calls)
        clock.advance(seconds)
    assert counts == [1, 2, 1]
    reporter.take_operation(retry=False)
    for seconds in (5, 6, 0):  # the slice begins with the report
        clock.advance(seconds)
        reporter.count_call()
        counts.append(reporter.calls)
    assert counts[3:] == [1, 1, 2]


def test_reporter__first_heartbeat_in_any_turn__reports_calls_and_asks_for_no_retry() -> None:
    for seconds in (5, 15, 25):
        reporter = RetryBudget("n", MemoryStore(ManualClock(seconds)))._reporter
        reporter.count_call()
        operation = reporter.heartbeat_operation()
        assert operation is not None
        assert operation.script_args()[:2] == [1, 0]


def test_reporter__shared_store_without_a_heartbeat__sends_nothing_by_itself(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    store.shared = True
    reporter = RetryBudget("n", store)._reporter
    for _ in range(3):
        reporter.count_call()
        clock.advance(10)
    assert store.apply(BudgetOperation("n", Budget(), 0, retry=False)).calls == 0


def test_budget__unnamed__may_differ_from_others_on_the_store() -> None:
    store = MemoryStore()
    budgets = [RetryBudget(UNNAMED, store, Budget(least=least)) for least in (1, 2)]
    assert [budget.budget.least for budget in budgets] == [1, 2]


def test_budget__used_up_right_after_the_machine_started__publishes_once_a_minute(
    published_events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(30)
    monkeypatch.setattr("comporta.retry.budget.MONOTONIC", clock)
    budget = RetryBudget("pncp", MemoryStore(), Budget(least=0))
    numbers = []
    for seconds in (59, 1, 0):
        granted_retries(budget, attempts=2)
        numbers.append(len(published_events))
        clock.advance(seconds)
    assert numbers == [1, 1, 2]


def test_budget__used_up_again_within_a_minute__publishes_one_event(published_events: list[Event]) -> None:
    budget = RetryBudget("pncp", MemoryStore(), Budget(least=0, window=30))
    count_calls(budget, 2)
    assert granted_retries(budget, attempts=2) == 0
    [event] = published_events
    assert (event.kind, event.source, event.severity) == ("retry_budget_exhausted", "pncp", "warning")
    assert event.text == "no more retries: 0 for 2 calls in the last 30 s"
    budget._published_ns -= 60_000_000_000
    assert granted_retries(budget, attempts=2) == 0
    assert len(published_events) == 2


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 101])
def test_name__not_usable_as_a_key__raises(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 100 of"):
        RetryBudget(name, MemoryStore())


def test_state_type__latest_slice__sets_the_expiry(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    budget = RetryBudget("pncp", store)
    count_calls(budget, 1)
    run(budget._usage_flow())
    assert BUDGET.expires_us(store._space(SPACE, BUDGET).table["pncp"]) == 1_800_000_060_000_000
