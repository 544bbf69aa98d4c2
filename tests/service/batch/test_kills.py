"""Workers that are killed: others continue, the sheet has every row once, and only a culprit fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.service.batch.jobs import POISON
from tests.service.batch.kills import (
    WorkerProcesses,
    opened_batches,
    run_and_kill_owners,
    run_with_kills,
)
from tests.service.batch.rig import (
    accounts,
    add_job,
    each_once,
    file_accounts,
    google_accounts,
    google_sheets,
    wait_finished,
    wait_until,
)
from tests.service.harness import async_test

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import COMPLETED, FAILED, FIRST_CURSOR, SUCCESS
from comporta.testing import SheetsServer

KILLS = 2


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@async_test
async def test_kill__while_a_google_sheet_is_filled__has_every_row_once(
    url: str, database: Database, google: SheetsServer, account: GoogleAccount
) -> None:
    def trouble() -> None:
        google.fail(429, 1, retry_after="0", matching="values:batchUpdate")
        google.lose_responses(2, matching="values:batchUpdate")

    google.latency = 0.02
    sheets = google_sheets(account, database)
    sheet, total = await run_with_kills(url, sheets, KILLS, 1, trouble=trouble, endpoint=google.url)
    assert google_accounts(google, sheet) == each_once(total)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@async_test
async def test_kill__while_a_file_is_filled__has_every_row_once(url: str, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    sheet, total = await run_with_kills(url, sheets, KILLS, 2, folder=str(sheets.directory))
    assert file_accounts(sheets, sheet) == each_once(total)


@pytest.mark.unmeasured
@pytest.mark.parametrize("role", ["chunk", "sheet"])
@async_test
async def test_kill__worker_that_holds_a_chunk_or_the_sheet__every_row_once(
    url: str, database: Database, google: SheetsServer, account: GoogleAccount, role: str
) -> None:
    google.latency = 0.1
    sheets = google_sheets(account, database)
    sheet, total = await run_and_kill_owners(url, sheets, role, KILLS, endpoint=google.url)
    assert google_accounts(google, sheet) == each_once(total)


@pytest.mark.parametrize(("url", "count"), [("sqlite", 2), ("postgresql", 1)], indirect=["url"])
@async_test
async def test_poisonous_accounts__kill_their_workers__fail_alone_after_three_attempts(
    url: str, tmp_path: Path, count: int
) -> None:
    """Some accounts kill whatever process runs them, in one of two jobs; nothing else fails."""
    poisonous = [f"{POISON}-{number}" for number in range(count)]
    listed = [*accounts(5), *poisonous[:1], *accounts(60)[5:40], *poisonous[1:], *accounts(60)[40:]]
    attempts = tmp_path / "attempts"
    with opened_batches(url, LocalSheets(tmp_path)) as batches, ExitStack() as exit_stack:
        options = {
            "url": url,
            "folder": str(tmp_path),
            "attempts_file": str(attempts),
            "settings": {"lease_seconds": 2.0},
        }
        workers = await asyncio.to_thread(WorkerProcesses, exit_stack, options, 3)
        assert await batches.add_job("ana", listed, "poisoned") is not None
        await add_job(batches, 60, "healthy")

        async def is_finished() -> bool:
            await asyncio.to_thread(workers.replace_dead)
            job = await batches.read_job("poisoned")
            return job is not None and job.status == COMPLETED

        await wait_until(is_finished)
        results = await batches.read_results("poisoned", FIRST_CURSOR, 100)
        healthy = await wait_finished(batches, "healthy")
    outcomes = {each.account: each.outcome for each in results}
    assert outcomes == {each: FAILED if each in poisonous else SUCCESS for each in listed}
    assert {each.message for each in results if each.outcome == FAILED} == {
        "the worker died each time it processed this account, 3 times"
    }
    starts = Counter(attempts.read_text(encoding="utf-8").split())
    assert set(starts) == set(poisonous)
    assert max(starts.values()) <= 3  # one that dies with another before it starts has fewer
    assert (healthy.succeeded, healthy.failed) == (60, 0)


@async_test
async def test_job__several_workers__work_on_it_together(url: str, tmp_path: Path) -> None:
    with opened_batches(url, LocalSheets(tmp_path)) as batches, ExitStack() as exit_stack:
        options = {"url": url, "folder": str(tmp_path), "seconds": 0.02}
        await asyncio.to_thread(WorkerProcesses, exit_stack, options, 3)
        await add_job(batches, 600)
        assert (await wait_finished(batches)).succeeded == 600
        results = await batches.read_results("job", FIRST_CURSOR, 1000)
    processed = Counter(each.message for each in results)
    assert len(processed) == 3
    assert min(processed.values()) >= 50
