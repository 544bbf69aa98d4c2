"""What a fleet may spend on retries."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.retry.conftest import Runs
from tests.stores.switchable import by_hand, moved
from tests.support import command, redis_store

from comporta.errors import StateDeniedError, StateTypeError, StateUnavailableError
from comporta.events import Event, listen
from comporta.flow import run
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.retry import Budget, RetryBudget
from comporta.retry.budget import BUDGET, SPACE, Spend, Spent
from comporta.stores.base import Outage, Store
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    events: list[Event] = []
    stop = listen(events.append)
    yield events
    stop()


def called(budget: RetryBudget, times: int) -> None:
    for _ in range(times):
        budget.called()


def granted(budget: RetryBudget, runs: Runs = run, tries: int = 60) -> int:
    """Ask until there is nothing left."""
    return sum(runs(budget.withdrawing()) for _ in range(tries))


def test_budget__hardly_any_calls__grants_the_least_there_is(store: Store, runs: Runs) -> None:
    budget = RetryBudget("pncp", store)
    called(budget, 20)
    assert granted(budget, runs, 15) == 10


def test_budget__many_calls__grants_a_fifth_of_them(store: Store, runs: Runs) -> None:
    budget = RetryBudget("pncp", store)
    called(budget, 100)
    assert granted(budget, runs, 25) == 20
    called(budget, 5)
    assert granted(budget, runs, 3) == 1
    assert runs(budget.spending()) == Spent(False, 105, 21)


def test_budget__two_workers__go_by_the_calls_of_both(store: Store) -> None:
    one, other = (RetryBudget("pncp", store) for _ in range(2))
    called(one, 100)
    called(other, 150)
    assert granted(one) == 20
    assert granted(other) == 30
    assert granted(one) == 0


def test_budget__another_name__is_another_budget(store: Store) -> None:
    assert granted(RetryBudget("pncp", store)) == 10
    assert granted(RetryBudget("pcp", store)) == 10


def test_budget__time_passes__is_there_again_bit_by_bit(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store, Budget(least=4))
    for _ in range(2):
        assert [run(budget.withdrawing()) for _ in range(2)] == [True, True]
        clock.advance(30)
    assert granted(budget) == 2  # the first two are a window ago
    clock.advance(60)
    assert granted(budget) == 4


def test_budget__calls_of_a_window_ago__no_longer_count(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store)
    called(budget, 200)
    assert run(budget.withdrawing())
    clock.advance(60)
    assert granted(budget) == 10


def test_called__told_nobody_for_a_window__is_forgotten(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store)
    called(budget, 200)
    clock.advance(60)
    assert granted(budget) == 10


def test_called__a_call_that_takes_longer_than_a_slice__counts(store: Store, clock: ManualClock) -> None:
    budget = RetryBudget("pncp", store)
    called(budget, 200)
    clock.advance(15)
    assert granted(budget) == 40


def test_called__in_one_process__counts_at_most_a_slice_late(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    budget = RetryBudget("pncp", store)
    for _ in range(30):
        called(budget, 10)
        clock.advance(10)
    called(budget, 10)
    assert run(budget.spending()).calls == 70


def test_budget__of_nothing__grants_nothing(store: Store) -> None:
    budget = RetryBudget("pncp", store, Budget(ratio=0, least=0))
    called(budget, 1000)
    assert granted(budget) == 0


def test_budget__another_window_under_the_same_name__starts_anew(store: Store) -> None:
    assert granted(RetryBudget("pncp", store, Budget(window=60))) == 10
    assert granted(RetryBudget("pncp", store, Budget(window=30))) == 10


def test_budget__exhausted__is_counted_each_time_and_said_once(heard: list[Event]) -> None:
    budget = RetryBudget("pncp", MemoryStore(), Budget(least=1))
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        called(budget, 3)
        assert granted(budget, tries=4) == 1
    finally:
        use_metrics(before)
    assert granted(budget, tries=1) == 0
    assert metrics.value("retry_budget_exhausted", budget="pncp") == 3
    [event] = heard
    assert event[1:] == (
        *("retry_budget_exhausted", "pncp"),
        *("no more retries: 1 for 3 calls in the last 60 s", "warning"),
    )


def test_budget__sink_fails__decides_all_the_same() -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise RuntimeError(name)

        histogram = counter

    before = use_metrics(Broken())
    try:
        assert granted(RetryBudget("pncp", MemoryStore(), Budget(least=1)), tries=3) == 1
    finally:
        use_metrics(before)


def test_keeper__calls_counted__are_told_the_others_once_a_second() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    budget = RetryBudget("pncp", store)
    assert budget.due() is None
    called(budget, 100)
    moved(store)
    assert run(RetryBudget("pncp", primary).spending()).calls == 100
    called(budget, 1)
    assert budget.due() is None  # not yet
    budget._told_ns -= 10**9
    clock.advance(70)
    assert budget.due() is None  # nor any more
    store.close()


def test_state_out_of_reach__goes_by_its_own_calls_and_its_share_of_the_least() -> None:
    store, primary = by_hand()
    store.keeper.census.heard(4)
    primary.error = StateUnavailableError("gone")
    budget = RetryBudget("pncp", store)
    assert granted(budget) == 3
    called(budget, 100)
    assert granted(budget) == 17
    store.close()


def test_state_out_of_reach__no_room_for_another_key__grants_nothing() -> None:
    outage = Outage(0.0, 0, "gone", 2, full=True)
    operation = Spend("pncp", Budget(), 5, retry=True).alone(outage)
    assert MemoryStore().apply(operation) == Spent(False, 0, 0)


def test_state__does_not_let_us_in__grants_nothing_and_says_so(heard: list[Event]) -> None:
    store, primary = by_hand()
    primary.error = StateDeniedError("no")
    budget = RetryBudget("pncp", store)
    assert granted(budget, tries=3) == 0
    assert [event.kind for event in heard] == ["retry_budget_unusable"]
    store.close()


def test_called__after_a_fork__is_the_parents() -> None:
    budget = RetryBudget("pncp", MemoryStore())
    called(budget, 100)
    budget.after_fork()
    assert run(budget.spending()).calls == 0


def test_redis__hash__is_readable_and_lives_for_a_window(server: Server, clock: ManualClock) -> None:
    with redis_store(server, clock) as store:
        budget = RetryBudget("pncp", store)
        called(budget, 5)
        assert run(budget.withdrawing())
    assert b"180000000 5 1" in command(server, "HGETALL", "retry_budget:pncp")
    left_ms = int(command(server, "PTTL", "retry_budget:pncp")[1:])
    assert 0 < left_ms <= 60_000


@pytest.mark.parametrize(
    "value", ["garbage", "", "nan 1 1", "180000000 1e9 1e9", "180000000 -1 -1", "9" * 400]
)
def test_redis__poison__is_read_as_nothing(server: Server, clock: ManualClock, value: str) -> None:
    with redis_store(server, clock) as store:
        command(server, "HSET", "retry_budget:pncp", "0", value)
        assert granted(RetryBudget("pncp", store), tries=12) == 10


def test_redis__something_else_at_the_key__is_named_and_others_are_not_concerned(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "retry_budget:pncp", "x")
        bad, good = (Spend(name, Budget(), 1, retry=True) for name in ("pncp", "pcp"))
        error, spent = store.apply_all([bad, good])
        assert isinstance(error, StateTypeError)
        assert "retry_budget:pncp" in str(error)
        assert spent == Spent(True, 1, 1)


def test_redis__server_time__is_used_where_nobody_tells_another(server: Server) -> None:
    with redis_store(server) as store:
        assert granted(RetryBudget("pncp", store), tries=12) == 10


def test_redis__something_else_at_the_key__goes_by_the_share(server: Server) -> None:
    with redis_store(server) as primary:
        command(server, "SET", "retry_budget:pncp", "x")
        store = FailoverStore.of(primary, primary.address)
        assert granted(RetryBudget("pncp", store), tries=12) == 10
        store.close()


def test_keeper__all_calls_succeed__the_others_hear_of_them_all_the_same(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    with redis_store(valkey) as primary:
        store = FailoverStore.of(primary, primary.address)
        budget = RetryBudget("pncp", store)
        called(budget, 100)
        elsewhere = RetryBudget("pncp", primary)
        until = time.monotonic() + 30
        while run(elsewhere.spending()).calls < 100:
            assert time.monotonic() < until
            time.sleep(0.05)
        store.close()


WORKER = """
import sys
from comporta.flow import run
from comporta.retry import RetryBudget
from comporta.stores.urls import open_store

budget = RetryBudget("pncp", open_store(sys.argv[1]))
for _ in range(25):
    budget.called()
print(sum(run(budget.withdrawing()) for _ in range(12)))
"""


def test_fleet__four_processes__have_one_budget(valkey: Server) -> None:
    command(valkey, "FLUSHALL")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, f"{valkey.url}?timeout=5"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    found = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert 10 <= sum(found) <= 20  # a fifth of a hundred calls, if those were all told by then


@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"ratio": -0.1}, ValueError, "ratio must be 0 to 100, got -0.1"),
        ({"ratio": "x"}, TypeError, "ratio must be a number, got 'x'"),
        ({"least": -1}, ValueError, "least must be 0 to 1e+06, got -1"),
        ({"least": 1.5}, TypeError, "least must be an int, got 1.5"),
        ({"least": True}, TypeError, "least must be an int, got True"),
        ({"window": 0.5}, ValueError, "window must be 1 to 300, got 0.5"),
        ({"window": 301}, ValueError, "window must be 1 to 300, got 301"),
    ],
)
def test_budget__bad_input__names_field_range_and_value(
    given: dict[str, Any], kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as raised:
        Budget(**given)
    assert str(raised.value) == said


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 101])
def test_name__that_cannot_be_a_key__is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 100 of"):
        RetryBudget(name, MemoryStore())


def test_kind__latest_slice__says_when_it_ends(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    budget = RetryBudget("pncp", store)
    called(budget, 1)
    run(budget.spending())
    assert BUDGET.expires_us(store._space(SPACE, BUDGET).table["pncp"]) == 1_800_000_060_000_000
