"""Sheets that the service serves from its database: CSV and XLSX files of the results so far."""

from __future__ import annotations

import asyncio
import csv
import io
import tempfile
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openpyxl
import pytest
from tests.service.batch.rig import (
    HEADER,
    Gate,
    accounts,
    add_job,
    configure_sheet,
    greet,
    run_batches,
    wait_backfilled,
    wait_finished,
    wait_stored,
)
from tests.service.harness import (
    RunningService,
    async_test,
    serve_on_thread,
    service_config,
)

from comporta.database.base import Database, Statement
from comporta.database.command import execute
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.errors import DatabaseUnavailableError, SinkNotFoundError
from comporta.pipeline.sinks.xlsx import CELL_CHARS_MAX
from comporta.service.app import create_app
from comporta.service.batch import downloads
from comporta.service.batch.commands import add_job as add_job_command
from comporta.service.batch.commands import configure_sheet as configure_command
from comporta.service.batch.commands import read_sheet
from comporta.service.batch.database_sheets import DatabaseSheets
from comporta.service.batch.download_queries import DownloadableSheet, SheetLine
from comporta.service.batch.downloads import CSV, XLSX, SheetDownloads
from comporta.service.batch.factory import BatchComponents
from comporta.service.batch.models import JobBounds
from comporta.service.migrations import MIGRATIONS
from comporta.service.routes import sheets as routes

KINDS = (CSV, XLSX)
UNKNOWN_ID = "x" * 32


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of temporary files, which is empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@asynccontextmanager
async def run_database_sheets(
    folder: Path, processor: Any = greet, **variables: str
) -> AsyncIterator[RunningService]:
    variables = {"client_limit": "false", "batch_poll_seconds": "0.05", "batch_concurrency": "4", **variables}
    components = BatchComponents(processor, is_digital=lambda _: True)
    app = create_app(service_config(folder, **variables), batch_components=components)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=60) as client,
    ):
        yield RunningService(app, client)


async def configure(service: RunningService, **body: Any) -> dict[str, Any]:
    body = {"job_id": "job", "user_id": "ana", **body}
    reply = await service.client.post("/ultra-batch/configure-sheets", json=body)
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def finish_job_with_sheet(service: RunningService, count: int, **body: Any) -> dict[str, Any]:
    """Run a job, configure its sheet and wait until its backfill is completed."""
    await add_job(service.container.batches, count)
    await wait_finished(service.container.batches)
    sheet = await configure(service, **body)
    assert (await wait_backfilled(service.container.batches)).backfill_status == "completed"
    return sheet


async def download(service: RunningService, sheet: dict[str, Any], kind: str) -> httpx2.Response:
    reply = await service.client.get(str(sheet["spreadsheet_url"]).removesuffix(CSV) + kind)
    assert reply.status_code == 200, reply.text
    return reply


def read_rows(content: bytes, kind: str) -> list[list[str]]:
    if kind == CSV:
        return list(csv.reader(io.StringIO(content.decode(), newline="")))
    workbook = openpyxl.load_workbook(io.BytesIO(content))
    return [[cell.value for cell in row] for row in workbook["results"].rows]


def greetings(count: int) -> list[list[str]]:
    return [HEADER, *([name, f"hello {name}"] for name in accounts(count))]


# -- files


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__finished_job__has_all_rows_in_the_order_of_accounts(
    tmp_path: Path, kind: str
) -> None:
    count = 3 * downloads.PAGE_ROWS + 1
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, count)
        reply = await download(service, sheet, kind)
        shown = (await service.client.get("/ultra-batch/sheets-config/job")).json()
    assert read_rows(reply.content, kind) == greetings(count)
    assert reply.headers["content-type"] == routes.MEDIA_TYPES[kind]
    assert reply.headers["cache-control"] == "no-store"
    assert f'filename="Ultra batch job.{kind}"' in reply.headers["content-disposition"]
    assert {name: shown[name] for name in sheet if name.startswith("spreadsheet")} == {
        name: value for name, value in sheet.items() if name.startswith("spreadsheet")
    }
    assert (shown["backfill_status"], shown["backfilled_rows"]) == ("completed", count)
    assert "sheets" not in files_in(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__running_job__has_the_rows_so_far(tmp_path: Path, kind: str) -> None:
    gate = Gate(5)
    async with run_database_sheets(tmp_path, gate) as service:
        batches = service.container.batches
        await add_job(batches, 20)
        sheet = await configure(service)
        assert sheet["backfill_status"] == "pending"
        await wait_stored(batches, 5)
        part = read_rows((await download(service, sheet, kind)).content, kind)
        gate.open(15)
        await wait_finished(batches)
        rest = read_rows((await download(service, sheet, kind)).content, kind)
    assert part == [row for row in greetings(20) if row in part]
    assert len(part) == 6
    assert rest == greetings(20)


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__failures_and_formulas__has_successes_as_text(tmp_path: Path, kind: str) -> None:
    messages = {"=1+1": "@x", "'=1+1": "-2", "fails": "", "empty": " ", "é": 'a;=b\n"c",d'}

    async def answer(account: str) -> str:
        if account == "fails":
            raise ValueError(account)
        return messages[account]

    async with run_database_sheets(tmp_path, answer) as service:
        await service.container.batches.add_job("ana", list(messages), "job")
        await wait_finished(service.container.batches)
        content = (await download(service, await configure(service), kind)).content
    rows = {
        CSV: [["'=1+1", "'@x"], ["''=1+1", "'-2"], ["é", 'a;\'=b\n"c",d']],
        XLSX: [["=1+1", "@x"], ["'=1+1", "-2"], ["é", 'a;=b\n"c",d']],
    }
    assert read_rows(content, kind) == [HEADER, *rows[kind]]
    if kind == XLSX:
        cells = openpyxl.load_workbook(io.BytesIO(content))["results"]
        assert {cell.data_type for row in cells.rows for cell in row} == {"s"}


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__no_row_yet__has_only_the_header(tmp_path: Path, kind: str) -> None:
    async with run_database_sheets(tmp_path, None) as service:
        await add_job(service.container.batches, 3)
        reply = await download(service, await configure(service), kind)
    assert read_rows(reply.content, kind) == [HEADER]


@async_test
async def test_download__message_longer_than_a_cell__is_cut_in_a_workbook_only(tmp_path: Path) -> None:
    async def long(account: str) -> str:
        return "x" * 40_000

    async with run_database_sheets(tmp_path, long) as service:
        sheet = await finish_job_with_sheet(service, 12)
        whole = read_rows((await download(service, sheet, CSV)).content, CSV)
        cut = read_rows((await download(service, sheet, XLSX)).content, XLSX)
    assert {row[1] for row in whole[1:]} == {"x" * 40_000}
    assert {row[1] for row in cut[1:]} == {"x" * (CELL_CHARS_MAX - 1) + "…"}


@pytest.mark.parametrize(
    ("name", "plain", "encoded"),
    [
        ("Março", "Mar_o.csv", "Mar%C3%A7o.csv"),
        ('a"/\\..\r\nb', "a .. b.csv", "a%20..%20b.csv"),
        ("../", "sheet.csv", "sheet.csv"),
    ],
)
@async_test
async def test_download__any_name__is_a_safe_file_name(
    tmp_path: Path, name: str, plain: str, encoded: str
) -> None:
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 1, custom_name=name)
        header = (await download(service, sheet, CSV)).headers["content-disposition"]
    assert header == f"attachment; filename=\"{plain}\"; filename*=UTF-8''{encoded}"


# -- addresses


@async_test
async def test_configure_sheets__without_public_url__url_has_the_host_of_the_request(tmp_path: Path) -> None:
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 1)
        other = await service.client.get(
            "/ultra-batch/sheets-config/job", headers={"host": "batch.example:8443"}
        )
    path = f"/ultra-batch/sheets/{sheet['spreadsheet_id']}.csv"
    assert sheet["spreadsheet_url"] == f"http://service{path}"
    assert other.json()["spreadsheet_url"] == f"http://batch.example:8443{path}"
    assert len(sheet["spreadsheet_id"]) == 32


@async_test
async def test_configure_sheets__public_url__is_the_start_of_the_url(tmp_path: Path) -> None:
    async with run_database_sheets(tmp_path, public_url="https://api.example/batch/") as service:
        sheet = await finish_job_with_sheet(service, 1)
    path = f"/ultra-batch/sheets/{sheet['spreadsheet_id']}.csv"
    assert sheet["spreadsheet_url"] == f"https://api.example/batch{path}"


@async_test
async def test_download__sheets_in_files__is_served_with_the_same_rows(tmp_path: Path) -> None:
    folder = tmp_path / "sheets"
    async with run_database_sheets(tmp_path, batch_sheets="files", sheets_folder=str(folder)) as service:
        sheet = await finish_job_with_sheet(service, 30)
        content = (await download(service, sheet, CSV)).content
    [path] = folder.glob("*.csv")
    assert sorted(content.splitlines()) == sorted(path.read_bytes().splitlines())
    assert sheet["spreadsheet_id"] not in path.name  # who sees the file does not know the address


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_head__sheet__has_the_headers_and_no_body(tmp_path: Path, kind: str) -> None:
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 5)
        path = str(sheet["spreadsheet_url"]).removesuffix(CSV) + kind
        reply = await service.client.head(path)
        missing = await service.client.head(f"/ultra-batch/sheets/{UNKNOWN_ID}.{kind}")
    assert (reply.status_code, reply.content) == (200, b"")
    assert "content-length" not in reply.headers
    assert reply.headers["content-type"] == routes.MEDIA_TYPES[kind]
    assert missing.status_code == 404


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sheet_id", [UNKNOWN_ID, "job", "batch-job", "%00", "a.b", "x" * 64])
@async_test
async def test_download__unknown_id__is_a_problem(tmp_path: Path, kind: str, sheet_id: str) -> None:
    async with run_database_sheets(tmp_path) as service:
        await finish_job_with_sheet(service, 1)
        reply = await service.client.get(f"/ultra-batch/sheets/{sheet_id}.{kind}")
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")
    assert reply.json()["field"] == "sheet_id"


@async_test
async def test_openapi__downloads__are_documented(tmp_path: Path) -> None:
    async with run_database_sheets(tmp_path) as service:
        paths = (await service.client.get("/openapi.json")).json()["paths"]
    for kind in KINDS:
        [(method, operation)] = paths[f"/ultra-batch/sheets/{{sheet_id}}.{kind}"].items()
        assert method == "get"
        assert routes.MEDIA_TYPES[kind].partition(";")[0] in operation["responses"]["200"]["content"]
        assert {"404", "503"} <= set(operation["responses"])


# -- bounds and failures


@async_test
async def test_download__job_with_more_accounts_than_a_workbook__is_csv_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ROWS_MAX", 4)
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 5)
        assert len(read_rows((await download(service, sheet, CSV)).content, CSV)) == 6
        reply = await service.client.get(str(sheet["spreadsheet_url"]).removesuffix(CSV) + XLSX)
    assert reply.status_code == 422
    assert reply.json()["detail"] == "a workbook has at most 4 rows, the job has 5 accounts: use the .csv"


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__too_many__is_refused_and_room_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(downloads.DOWNLOADS_MAX, kind, 1)
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 5)
        found = await service.container.downloads.find(sheet["spreadsheet_id"])
        assert found is not None
        first = service.container.downloads.chunks(found, kind)
        assert await anext(first) == b""
        reply = await service.client.get(str(sheet["spreadsheet_url"]).removesuffix(CSV) + kind)
        assert (reply.status_code, reply.json()["retry_after"]) == (503, 5)
        await first.aclose()
        await download(service, sheet, kind)


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__database_away__is_a_problem_and_leaves_nothing_behind(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 5)
        with monkeypatch.context() as patched:
            patched.setattr(SheetDownloads, "_read_lines", _unavailable)
            reply = await service.client.get(str(sheet["spreadsheet_url"]).removesuffix(CSV) + kind)
        assert (reply.status_code, reply.json()["retry_after"]) == (503, 5)
        assert files_in(temporary) == []
        await download(service, sheet, kind)


def _unavailable(*_: object) -> Any:
    raise DatabaseUnavailableError("on purpose")


def test_download__database_lost_in_the_middle__ends_the_connection_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SheetDownloads._read_lines

    def fail_later(self: SheetDownloads, sheet: DownloadableSheet, after: int) -> list[SheetLine]:
        return _unavailable() if after else read(self, sheet, after)

    monkeypatch.setattr(SheetDownloads, "_read_lines", fail_later)
    with serve_sheet(tmp_path, 5) as url, pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(url, timeout=60)


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__client_leaves__frees_the_room_and_leaves_no_file(
    temporary: Path, tmp_path: Path, kind: str
) -> None:
    async with run_database_sheets(tmp_path) as service:
        sheet = await finish_job_with_sheet(service, 5)
        served = service.container.downloads
        url = httpx2.URL(str(sheet["spreadsheet_url"]).removesuffix(CSV) + kind)
        is_sending = asyncio.Event()

        async def send(message: MutableMapping[str, Any]) -> None:
            if message.get("body"):
                is_sending.set()
                await asyncio.Event().wait()  # the client reads nothing

        async def receive() -> dict[str, Any]:
            await is_sending.wait()
            assert served._in_progress[kind] == 1
            return {"type": "http.disconnect"}

        scope = {
            "type": "http",
            "method": "GET",
            "path": url.path,
            "headers": [],
            "query_string": b"",
            "app": service.app,
        }
        await service.app(scope, receive, send)
        assert served._in_progress[kind] == 0
    assert files_in(temporary) == []


@contextmanager
def serve_sheet(folder: Path, count: int) -> Iterator[str]:
    """Serve a finished job with a sheet over HTTP; yields the URL of the sheet."""
    config = service_config(folder, client_limit="false", batch_poll_seconds="0.05", batch_concurrency="50")
    app = create_app(config, batch_components=BatchComponents(greet, is_digital=lambda _: True))
    with serve_on_thread(app) as (address, _), httpx2.Client(base_url=address, timeout=60) as client:
        job = {"job_id": "job", "accounts": accounts(count)}
        assert '"event": "end"' in client.post("/ultra-batch/jobs", json=job).text
        body = {"job_id": "job", "user_id": "ana"}
        yield client.post("/ultra-batch/configure-sheets", json=body).json()["spreadsheet_url"]


@pytest.mark.parametrize("kind", KINDS)
@async_test
async def test_download__job_deleted_in_the_middle__raises_and_does_not_look_complete(
    plain: Database, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(downloads, "PAGE_ROWS", 2)
    sheet = add_sheet(plain, 5)
    served = SheetDownloads(plain)
    read, pages = SheetDownloads._read_lines, 0

    def delete_later(self: SheetDownloads, sheet: DownloadableSheet, after: int) -> list[SheetLine]:
        nonlocal pages
        pages += 1
        if pages == 2:
            for table in ("batch_results", "batch_sheets", "batch_jobs"):
                plain.write((Statement(f"DELETE FROM {table}"),), {})  # noqa: S608 - our own tables
        return read(self, sheet, after)

    monkeypatch.setattr(SheetDownloads, "_read_lines", delete_later)
    with pytest.raises(SinkNotFoundError, match="was deleted while a client read it"):
        await read_all(served, sheet, kind)
    assert not served._in_progress[kind]
    served.close()


@async_test
async def test_download__stopped_while_the_workbook_is_built__leaves_no_file(
    plain: Database, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "PAGE_ROWS", 2)
    sheet = add_sheet(plain, 50)
    served = SheetDownloads(plain)
    read, is_reading, may_read = SheetDownloads._read_lines, threading.Event(), threading.Event()
    pages: list[int] = []

    def read_slowly(self: SheetDownloads, sheet: DownloadableSheet, after: int) -> list[SheetLine]:
        pages.append(after)
        is_reading.set()
        assert may_read.wait(60)
        return read(self, sheet, after)

    monkeypatch.setattr(SheetDownloads, "_read_lines", read_slowly)
    reading = asyncio.create_task(read_all(served, sheet, XLSX))
    await asyncio.to_thread(is_reading.wait, 60)
    assert len(files_in(temporary)) == 1
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    may_read.set()
    await asyncio.to_thread(served._workbooks.close, wait=True)
    assert len(pages) == 1
    assert files_in(temporary) == []
    served.close()


def add_sheet(database: Database, count: int, message: str = "hello") -> DownloadableSheet:
    """Store a finished job with a sheet."""
    database.write((Statement("DELETE FROM batch_results"), Statement("DELETE FROM batch_sheets")), {})
    database.write((Statement("DELETE FROM batch_jobs"),), {})
    execute(database, add_job_command("job", "ana", "digest", accounts(count), JobBounds(1)))
    store = "UPDATE batch_results SET outcome = 'success', message = :message, processed_at_us = 1"
    database.write((Statement(store),), {"message": message})
    _, config = execute(database, configure_command("job", "ana", "batch-job", "", "Sheet"))
    assert config is not None
    return DownloadableSheet(config.download_id, "job", "Sheet", count, "ana")


async def read_all(served: SheetDownloads, sheet: DownloadableSheet, kind: str) -> bytes:
    return b"".join([chunk async for chunk in served.chunks(sheet, kind)])


@pytest.mark.unmeasured
@async_test
async def test_download__ten_times_the_rows__needs_no_more_memory(plain: Database) -> None:
    peaks = []
    for count in (2_000, 20_000):
        sheet, served, sent = add_sheet(plain, count, "x" * 500), SheetDownloads(plain), 0
        tracemalloc.start()
        async for chunk in served.chunks(sheet, CSV):
            sent += len(chunk)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        served.close()
        assert sent > 500 * count
    assert peaks[1] < 1.5 * peaks[0]


@async_test
async def test_download__each_database__pages_by_position(database: Database) -> None:
    sheet, served = add_sheet(database, 2 * downloads.PAGE_ROWS + 1), SheetDownloads(database)
    assert await served.find(sheet.download_id) == sheet
    assert await served.find(UNKNOWN_ID) is None
    rows = read_rows(await read_all(served, sheet, CSV), CSV)
    assert rows == [HEADER, *([name, "hello"] for name in accounts(sheet.total))]
    served.close()


# -- where sheets are


@async_test
async def test_database_sheets__job_with_a_sheet__stores_no_rows_anywhere_else(database: Database) -> None:
    async with run_batches(database, DatabaseSheets(database), greet) as batches:
        await add_job(batches, 20)
        await configure_sheet(batches)
        await wait_finished(batches)
        config = await wait_backfilled(batches)
        again = await batches.configure_sheet("job", "ana", "another name")
    assert (config.backfill_status, config.spreadsheet_url) == ("completed", "")
    assert again is not None
    assert (again.config.download_id, again.backfill_status) == (config.download_id, None)


@async_test
async def test_database_sheets__running_job__has_one_turn_for_its_backfill(database: Database) -> None:
    gate, turns = Gate(120), 0
    sheets = DatabaseSheets(database)
    sink = sheets.sink

    def counted_sink(spreadsheet_id: str) -> Any:
        nonlocal turns
        turns += 1
        return sink(spreadsheet_id)

    sheets.sink = counted_sink  # type: ignore[method-assign]
    async with run_batches(database, sheets, gate) as batches:
        await add_job(batches, 400)
        await wait_stored(batches, 120)
        await configure_sheet(batches)
        await wait_backfilled(batches)
        gate.open(200)
        await wait_stored(batches, 320)
        assert database.read(Statement("SELECT due_us FROM batch_sheets"), {}) == [(None,)]
        gate.open(80)
        assert (await wait_finished(batches)).succeeded == 400
        assert (await wait_backfilled(batches)).backfilled_rows == 120
    assert turns == 1


def test_database_sheets__sheet_of_google__is_missing(plain: Database) -> None:
    sheets = DatabaseSheets(plain)
    execute(plain, add_job_command("job", "ana", "digest", ["a"], JobBounds(1)))
    execute(plain, configure_command("job", "ana", "of-google", "https://docs.google.com/x", "Sheet"))
    assert not sheets.exists("of-google")
    with pytest.raises(SinkNotFoundError, match="no sheet 'of-google' is served from the database"):
        sheets.sink("of-google")
    sheets.open()
    sheets.close()


@async_test
async def test_configure_sheet__moved_from_google_to_the_database__is_a_new_sheet(plain: Database) -> None:
    execute(plain, add_job_command("job", "ana", "digest", ["a"], JobBounds(1)))
    execute(plain, configure_command("job", "ana", "of-google", "https://docs.google.com/x", "Sheet"))
    async with run_batches(plain, DatabaseSheets(plain), greet) as batches:
        await wait_finished(batches)
        again = await batches.configure_sheet("job", "ana", None)
        assert again is not None
        assert (again.config.spreadsheet_url, again.backfill_status) == ("", "pending")
        assert (await wait_backfilled(batches)).backfill_status == "completed"


def test_migration__sheets_of_files_and_of_google__get_ids_that_differ(empty_database_url: str) -> None:
    database = open_database(empty_database_url)
    migrate(database, [each for each in MIGRATIONS if each.number <= 200])
    urls = [Path("/srv/a.csv").as_uri(), Path("/srv/b.csv").as_uri(), "https://docs.google.com/x"]
    for number, url in enumerate(urls):
        database.write((_OLD_JOB, _OLD_SHEET), {"job_id": f"job-{number}", "url": url})
    migrate(database, MIGRATIONS)
    configs = [execute(database, read_sheet(f"job-{number}")) for number in range(3)]
    database.close()
    ids = {config.download_id for config in configs if config is not None}
    assert len(ids) == 3
    assert all(routes._DOWNLOAD_ID.fullmatch(each) for each in ids)
    assert [config.spreadsheet_url for config in configs if config] == ["", "", urls[2]]


_OLD_JOB = Statement(
    """
    INSERT INTO batch_jobs (job_id, user_id, digest, status, total, created_at_us, last_us)
    VALUES (:job_id, 'ana', '', 'completed', 1, 1, 1)
    """
)
_OLD_SHEET = Statement(
    """
    INSERT INTO batch_sheets (job_id, user_id, spreadsheet_id, spreadsheet_url, spreadsheet_name,
        created_at_us, boundary_us, backfill_status)
    VALUES (:job_id, 'ana', 'id', :url, 'Sheet', 1, 1, 'completed')
    """
)
