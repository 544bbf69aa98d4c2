"""A batch writer in front of the sheet: whatever happens to its flushes, every row is there once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.pipeline.sheets.conftest import hurried

from comporta import Retry
from comporta.errors import SinkUnavailableError
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
from comporta.pipeline.writer import BatchWriter
from comporta.testing import ManualClock, SheetsServer

WRITES = "values:batchUpdate"


def trouble(server: SheetsServer) -> None:
    server.fail(429, 2, retry_after="1", to=WRITES)
    server.lose(4, to=WRITES)
    server.lose(3, reset=True, to=WRITES)
    server.fail(503, 2, to=WRITES)


def test_writer__lost_answers_quotas_and_errors__every_row_is_there_once(
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


def test_writer__service_hangs__is_tried_again_after_the_time_out(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, database: str
) -> None:
    retry = Retry(20, 0.05, budget=None, on=SinkUnavailableError)
    sink = SheetsSink(spreadsheet, account, database=database)
    writer = BatchWriter(sink, retry=retry).sync
    with writer:
        server.hang(1, done=True, to=WRITES)
        server.hang(1, to=WRITES)
        with hurried(account):
            for number in range(120):
                writer.write({"id": number})
            writer.flush()
    assert server.rows(spreadsheet)[1:] == [[number] for number in range(120)]


def test_writer__row_that_cannot_be_kept__alone_goes_to_dead_letters(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"
    sink = SheetsSink(spreadsheet, account, database=database, columns=["id", "text"])
    with BatchWriter(sink, dead_letters=path).sync as writer:
        for number in range(10):
            writer.write({"id": number, "text": "x" * (50_001 if number == 4 else 1)})
    assert [line[0] for line in server.rows(spreadsheet)[1:]] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    (letter,) = DeadLetters.read(path)
    assert "text must be at most 50000 characters, got 50001" in letter.reason
