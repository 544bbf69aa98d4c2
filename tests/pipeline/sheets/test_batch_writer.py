"""A batch writer in front of a sheet: faults of the service lose and repeat no row."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.pipeline.sheets.conftest import short_timeout

from comporta import Retry
from comporta.errors import SinkUnavailableError
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
from comporta.pipeline.writer.writer import BatchWriter
from comporta.testing import ManualClock, SheetsServer

WRITES = "values:batchUpdate"


def trouble(server: SheetsServer) -> None:
    server.fail(429, 2, retry_after="1", matching=WRITES)
    server.lose_responses(4, matching=WRITES)
    server.lose_responses(3, reset=True, matching=WRITES)
    server.fail(503, 2, matching=WRITES)


def test_writer__lost_responses_quotas_and_errors__each_row_is_there_once(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, database: str, clock: ManualClock
) -> None:
    retry = Retry(20, clock=clock, budget=None)

    async def main() -> None:
        sink = SheetsSink(spreadsheet, account, database=database, columns=["id", "text"])
        async with BatchWriter(sink, max_delay=0.01, retry=retry) as writer:
            await writer.write({"id": "first", "text": "="})
            await writer.flush()
            trouble(server)
            for number in range(500):
                await writer.write({"id": number, "text": f"row {number}"})

    asyncio.run(main())
    kept = server.rows(spreadsheet)
    assert kept[:2] == [["id", "text"], ["first", "="]]
    assert kept[2:] == [[number, f"row {number}"] for number in range(500)]


def test_writer__service_hangs__is_retried_after_the_timeout(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, database: str
) -> None:
    retry = Retry(20, 0.05, budget=None, on=SinkUnavailableError)
    sink = SheetsSink(spreadsheet, account, database=database)
    writer = BatchWriter(sink, retry=retry).sync
    with writer:
        server.hang(1, execute=True, matching=WRITES)
        server.hang(1, matching=WRITES)
        with short_timeout(account):
            for number in range(120):
                writer.write({"id": number})
            writer.flush()
    assert server.rows(spreadsheet)[1:] == [[number] for number in range(120)]


def test_writer__invalid_row__only_it_becomes_a_dead_letter(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"
    sink = SheetsSink(spreadsheet, account, database=database, columns=["id", "text"])
    with BatchWriter(sink, dead_letters=path).sync as writer:
        for number in range(10):
            writer.write({"id": number, "text": "x" * (50_001 if number == 4 else 1)})
    assert [line[0] for line in server.rows(spreadsheet)[1:]] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (dead_letter,) = DeadLetters.read(path)
    assert "text must have at most 50000 characters, got 50001" in dead_letter.reason
