"""Which job gets a place on a worker, accounts whose worker died, and the gate that runs one alone."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import (
    Gate,
    add_job,
    run_batches,
    wait_finished,
    wait_stored,
    wait_until,
)
from tests.service.harness import async_test

from comporta import events
from comporta.database.base import Database, Statement
from comporta.database.command import execute
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.service.batch import account_gate, job_turns, runner
from comporta.service.batch.account_gate import AccountGate
from comporta.service.batch.batches import Batches
from comporta.service.batch.chunk_commands import claim_chunk
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import COMPLETED, FAILED, FIRST_CURSOR, ChunkLease, ClaimedChunk
from comporta.service.batch.runner import JobRun

LARGE_JOBS = 8
EXPIRE = Statement("UPDATE batch_chunks SET lease_until_us = 0")


class SlowAccounts:
    """A processor that holds the accounts of large jobs until they are released; others pass at once."""

    def __init__(self) -> None:
        self.held = 0
        self.released = asyncio.Event()

    async def __call__(self, account: str) -> str:
        if account.startswith("large"):
            self.held += 1
            await self.released.wait()
        return account


async def add_large_job(batches: Batches, number: int) -> None:
    listed = [f"large-{number}-{each}" for each in range(200)]
    assert await batches.add_job("ana", listed, f"large-{number}") is not None


@pytest.mark.unmeasured
@async_test
async def test_turns__small_job_beside_eight_large_ones__finishes_while_they_hold_every_place(
    database: Database, tmp_path: Path
) -> None:
    slow = SlowAccounts()
    sheets = LocalSheets(tmp_path)
    settings: dict[str, Any] = {"jobs_max": LARGE_JOBS, "concurrency": 10, "lease_seconds": 60}
    async with run_batches(database, sheets, slow, **settings) as batches:
        for number in range(LARGE_JOBS):
            await add_large_job(batches, number)

        async def all_held() -> bool:
            return slow.held == LARGE_JOBS * 10

        await wait_until(all_held)
        for name in ("small", "another"):  # one after the other: each leaves its place
            await add_job(batches, 1, name)
            assert (await wait_finished(batches, name)).succeeded == 1
        assert slow.held == LARGE_JOBS * 10
        slow.released.set()
        for number in range(LARGE_JOBS):
            assert (await wait_finished(batches, f"large-{number}")).succeeded == 200


@async_test
async def test_turns__more_jobs_than_places__all_advance_before_one_can_be_finished(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate lets fewer accounts through than one job has, so no job ends before the last one advances."""
    monkeypatch.setattr(job_turns, "TURN_SECONDS", 0.0)
    jobs, gate, passes = [f"job-{number}" for number in range(5)], Gate(), iter(range(399))
    settings: dict[str, Any] = {"jobs_max": 1, "concurrency": 2, "lease_seconds": 60}
    async with run_batches(plain, LocalSheets(tmp_path), gate, **settings) as batches:
        for job_id in jobs:
            await add_job(batches, 400, job_id)

        async def all_advanced() -> bool:
            gate.open(next(passes, -1) >= 0)
            found = [await batches.read_job(job_id) for job_id in jobs]
            return all(job is not None and job.succeeded for job in found)

        await wait_until(all_advanced)
        gate.open(10_000)
        for job_id in jobs:
            assert (await wait_finished(batches, job_id)).succeeded == 400


@async_test
async def test_job_run__quick_accounts__claims_at_most_twice_as_many_as_before(
    plain: Database, tmp_path: Path
) -> None:
    sizes: list[int] = []
    async with run_batches(plain, LocalSheets(tmp_path), concurrency=4) as batches:
        store = batches._turns._store
        plain_claim = store.claim

        async def recorded_claim(job_id: str, count: int) -> ClaimedChunk | None:
            sizes.append(count)
            return await plain_claim(job_id, count)

        store.claim = recorded_claim  # type: ignore[method-assign]
        await add_job(batches, 3000)
        assert (await wait_finished(batches)).succeeded == 3000
    assert sizes[0] == 4
    assert all(4 <= size <= runner.CHUNK_ACCOUNTS_MAX for size in sizes)
    assert all(later <= 2 * size for size, later in pairwise(sizes))


def test_next_size__slow_accounts__stays_at_one_for_each_place() -> None:
    lease = ChunkLease("job", 1, 1, 10, 1)
    nothing: dict[ChunkLease, asyncio.Task[None] | None] = {}
    run = JobRun(ClaimedChunk(lease, []), None, None, AccountGate(), nothing, concurrency=10)  # type: ignore[arg-type]
    assert run._next_size(10, 10, 0.0) == 20
    assert run._next_size(40, 40, 0.2) == 50
    assert run._next_size(400, 400, 0.01) == 500
    assert run._next_size(20, 20, 60.0) == 10


@async_test
async def test_chunk__has_all_results_already__ends_without_an_account(
    plain: Database, tmp_path: Path
) -> None:
    """An earlier version may have stored results out of order."""
    stored = Statement(
        "UPDATE batch_results SET outcome = 'success', message = 'x', processed_at_us = 1 WHERE position < 9"
    )
    counted = Statement("UPDATE batch_jobs SET succeeded = 8")
    async with run_batches(plain, LocalSheets(tmp_path), None) as batches:
        await add_job(batches, 10)
    plain.write((stored, counted), {})
    async with run_batches(plain, LocalSheets(tmp_path), concurrency=4) as batches:
        assert (await wait_finished(batches)).succeeded == 10


# -- accounts whose worker died


async def _abandon_chunk(database: Database, count: int) -> None:
    """Claim accounts for a worker that does not exist any more."""
    chunk = execute(database, claim_chunk("job", "dead-1-a", 60_000_000, count))
    assert chunk is not None
    database.write((EXPIRE,), {})


@async_test
async def test_suspects__healthy_accounts_of_a_dead_worker__succeed(
    database: Database, tmp_path: Path
) -> None:
    async with run_batches(database, LocalSheets(tmp_path), None) as batches:
        await add_job(batches, 20)
    await _abandon_chunk(database, 15)
    async with run_batches(database, LocalSheets(tmp_path)) as batches:
        assert (await wait_finished(batches)).succeeded == 20


@pytest.mark.parametrize(("attempts", "outcome"), [(2, "success"), (3, "failed")])
@async_test
async def test_suspect__attempted_before__runs_alone_or_fails(
    database: Database, tmp_path: Path, attempts: int, outcome: str
) -> None:
    alone: list[int] = []
    running = 0

    async def process(account: str) -> str:
        nonlocal running
        running += 1
        if account == "account-0":
            alone.append(running)
        await asyncio.sleep(0.001)  # sleeps: the processor under test takes this long
        running -= 1
        return account

    async with run_batches(database, LocalSheets(tmp_path), None) as batches:
        await add_job(batches, 200)
    await _abandon_chunk(database, 1)
    count = Statement("UPDATE batch_chunks SET attempts = :attempts")
    database.write((count,), {"attempts": attempts})
    async with run_batches(database, LocalSheets(tmp_path), process) as batches:
        job = await wait_finished(batches)
        results = await batches.read_results("job", FIRST_CURSOR, 200)
    assert job.failed == (outcome == FAILED)
    assert {each.outcome for each in results if each.account == "account-0"} == {outcome}
    assert alone == ([1] if outcome == "success" else [])
    exhausted = [event for event in events.latest_events() if event.kind == "batch_account_exhausted"]
    assert bool(exhausted) == (outcome == FAILED)


@async_test
async def test_suspect__worker_shuts_down__is_released_without_counting(
    plain: Database, tmp_path: Path
) -> None:
    async with run_batches(plain, LocalSheets(tmp_path), None) as batches:
        await add_job(batches, 1)
    await _abandon_chunk(plain, 1)
    sheets = LocalSheets(tmp_path)
    async with run_batches(plain, sheets, Gate(), closing_seconds=0.05, lease_seconds=60):
        await wait_until(lambda: _attempts(plain, 2))
    assert await _attempts(plain, 1)


@async_test
async def test_suspect__lease_lost__is_processed_by_the_next_claim(plain: Database, tmp_path: Path) -> None:
    gate = Gate()
    async with run_batches(plain, LocalSheets(tmp_path), None) as batches:
        await add_job(batches, 1)
    await _abandon_chunk(plain, 1)
    async with run_batches(plain, LocalSheets(tmp_path), gate, lease_seconds=60) as batches:
        await wait_until(lambda: _attempts(plain, 2))
        plain.write((Statement("UPDATE batch_chunks SET token = 1, lease_until_us = 0, attempts = 1"),), {})
        gate.open(2)
        assert (await wait_finished(batches)).succeeded == 1


@async_test
async def test_last_attempt__claimed_by_another_worker_meanwhile__starts_nothing(
    plain: Database, tmp_path: Path
) -> None:
    async with run_batches(plain, LocalSheets(tmp_path), Gate(), closing_seconds=0.1) as batches:
        assert batches._processor is not None
        work = runner.SuspectRun(
            batches._turns._store, batches._processor, AccountGate(), batches._turns.last_attempts.held
        )
        await work.run_alone()
    assert batches._turns.last_attempts.held == {}


async def _attempts(database: Database, attempts: int) -> bool:
    return database.read(Statement("SELECT attempts FROM batch_chunks"), {}) == [(attempts,)]


@async_test
async def test_store_of_a_chunk__database_fails__is_released_for_others(
    plain: Database, tmp_path: Path
) -> None:
    """A run that ends with an error costs its accounts no attempt."""
    gate = Gate(2)
    async with run_batches(plain, LocalSheets(tmp_path), gate, lease_seconds=60) as batches:
        await add_job(batches, 4)
        await wait_stored(batches, 2)
        [run] = batches._turns.runs.values()

        def broken(*_: object) -> None:
            raise ValueError("on purpose")

        run._store_chunk = broken  # type: ignore[method-assign, assignment]
        gate.open(10)
        assert (await wait_finished(batches)).succeeded == 4
    assert any(event.kind == "batch_interrupted" for event in events.latest_events())


@async_test
async def test_exhausted_account__the_last_of_its_job__finishes_the_job(
    plain: Database, tmp_path: Path
) -> None:
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        async with run_batches(plain, LocalSheets(tmp_path), None) as batches:
            await add_job(batches, 1)
            await _abandon_chunk(plain, 1)
            plain.write((Statement("UPDATE batch_chunks SET attempts = 3"),), {})
            job = await wait_finished(batches)
            await batches._leases._fail_exhausted("job")  # another worker was first: nothing happens
    finally:
        use_metrics(before)
    assert (job.status, job.failed) == (COMPLETED, 1)
    assert metrics.value("batch_jobs", outcome=COMPLETED) == 1
    assert metrics.value("batch_results", outcome=FAILED) == 1


# -- the gate


@async_test
async def test_gate__one_alone__waits_for_the_others_and_holds_back_the_next() -> None:
    gate, order = AccountGate(), list[str]()
    entered, leave = asyncio.Event(), asyncio.Event()

    async def together(name: str) -> None:
        async with gate.together():
            order.append(name)
            entered.set()
            await leave.wait()

    async def alone() -> None:
        async with gate.alone():
            order.append("alone")

    first = asyncio.create_task(together("first"))
    await entered.wait()
    single = asyncio.create_task(alone())
    while gate._open.is_set():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)
    later = asyncio.create_task(together("later"))
    await asyncio.sleep(0)
    assert order == ["first"]
    leave.set()
    await asyncio.gather(first, single, later)
    assert order == ["first", "alone", "later"]


@async_test
async def test_gate__others_never_end__starts_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(account_gate, "ALONE_WAIT_SECONDS", 0.01)
    gate = AccountGate()
    async with gate.together(), gate.alone():
        assert gate._running == 1
    async with gate.together():
        assert gate._running == 1
