"""The components of batches: the whitelist, processors, and sheets as files."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import accounts, each_once, file_accounts
from tests.service.harness import async_test, service_config

from comporta.database.base import Database
from comporta.errors import (
    CircuitOpenError,
    SinkBusyError,
    SinkNotFoundError,
    SinkUnavailableError,
)
from comporta.limits.priority import priority, resolve_caller
from comporta.service.batch import local_sheets, processor
from comporta.service.batch.database_sheets import DatabaseSheets
from comporta.service.batch.factory import BatchComponents, open_batches
from comporta.service.batch.local_sheets import LocalSheet, LocalSheets
from comporta.service.batch.models import AccountResult, PendingAccount
from comporta.service.batch.processor import AccountProcessor, clean_message, load_processor
from comporta.service.batch.sheets import GoogleSheets
from comporta.service.batch.whitelist import Whitelist
from comporta.testing import ManualClock, SimulatedUpstream
from comporta.thread_pool import ThreadPool
from comporta.upstream.registry import Upstreams

# -- the whitelist


@pytest.mark.parametrize(
    ("team", "digital", "of_team", "expected"),
    [
        (None, None, None, False),
        (None, True, None, True),
        ("blue", None, True, True),
        ("blue", None, False, False),
        ("blue", False, True, False),
        ("blue", True, False, True),
        ("unknown", None, None, False),
    ],
)
def test_is_digital__user_and_team__user_record_takes_precedence(
    database: Database, team: str | None, digital: bool | None, of_team: bool | None, expected: bool
) -> None:
    whitelist = Whitelist(database)
    if of_team is not None:
        whitelist.set_team("blue", digital=of_team)
    whitelist.set_user("ana", team=team, digital=digital)
    assert whitelist.is_digital("ana") is expected
    assert whitelist.is_digital("unknown") is False


def test_is_digital__read_before__is_cached_for_five_minutes(plain: Database) -> None:
    clock = ManualClock()
    whitelist, other = Whitelist(plain, clock=clock), Whitelist(plain)
    assert not whitelist.is_digital("ana")
    other.set_user("ana", digital=True)
    clock.advance(299)
    assert whitelist.cached_answer("ana") is False
    clock.advance(2)
    assert whitelist.cached_answer("ana") is None
    assert whitelist.is_digital("ana")


def test_is_digital__changed_in_this_process__is_read_again(plain: Database) -> None:
    whitelist = Whitelist(plain)
    assert not whitelist.is_digital("ana")
    whitelist.set_user("ana", team="blue")
    assert not whitelist.is_digital("ana")
    whitelist.set_team("blue", digital=True)
    assert whitelist.is_digital("ana")


def test_is_digital__more_users_than_cached__evicts_the_oldest(plain: Database) -> None:
    whitelist = Whitelist(plain, users_max=2)
    for user in ("a", "b", "a", "c"):
        whitelist.is_digital(user)
    assert [whitelist.cached_answer(user) for user in ("a", "b", "c")] == [None, False, False]


# -- processors


async def echo(account: str) -> str:
    return account


class MadeProcessor:
    async def __call__(self, account: str) -> str:
        return account


NO_FUNCTION = 7


@pytest.mark.parametrize("name", ["echo", "MadeProcessor"])
@async_test
async def test_load_processor__function_or_class__is_called_with_accounts(name: str) -> None:
    loaded: Any = load_processor(f"{__name__}:{name}")
    assert await loaded("a") == "a"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nothing", ValueError),
        ("no.such.module:name", ValueError),
        (f"{__name__}:nothing", ValueError),
        (f"{__name__}:NO_FUNCTION", TypeError),
    ],
)
def test_load_processor__not_callable__says_what_is_allowed(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"processor must (be|have)"):
        load_processor(name)


@async_test
async def test_processor__refused__waits_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 3

    async def refused(account: str) -> str:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise CircuitOpenError("accounts", "open", None, 0.001)
        return "well"

    pool = ThreadPool("test", 1)
    assert await AccountProcessor(refused, pool).process(PendingAccount(1, "a")) == AccountResult(
        1, "a", "success", "well"
    )
    refusals = 10**6
    monkeypatch.setattr(processor, "REFUSAL_RETRIES_MAX", 3)
    done = await AccountProcessor(refused, pool).process(PendingAccount(1, "a"))
    assert done.outcome == "failed"
    assert done.message.startswith("CircuitOpenError: accounts: the circuit is open")


@async_test
async def test_processor__result_is_not_a_string__is_converted() -> None:
    async def number(account: str) -> Any:
        return 42

    assert (
        await AccountProcessor(number, ThreadPool("test", 1)).process(PendingAccount(1, "a"))
    ).message == "42"


@async_test
async def test_processor__blocking__inherits_the_class_and_the_owner_of_its_job() -> None:
    def caller(account: str) -> str:
        return str(tuple(resolve_caller(None, None)))

    with priority("batch", owner="job 7"):
        done = await AccountProcessor(caller, ThreadPool("test", 1)).process(PendingAccount(1, "a"))
    assert done.message == "(2, 'job 7')"


def test_clean_message__control_characters__become_spaces() -> None:
    assert clean_message("\0 a\tb\x7f\r\nc\ud800 ") == "a b  \nc?"
    assert len(clean_message("x" * 100_000)) == 40_000


@async_test
async def test_upstream_processor__responses__become_messages(plain: Database, tmp_path: Path) -> None:
    with SimulatedUpstream() as server:
        config = service_config(tmp_path, batch_address=server.url, allow_private_addresses="true")
        upstreams = Upstreams(config.settings)
        batches = open_batches(config, plain, upstreams, BatchComponents())
        assert batches._processor is not None
        done = await batches._processor.process(PendingAccount(1, "a b&c"))
        assert done == AccountResult(1, "a b&c", "success", '{"status": 200}')
        server.status = 404
        failed = await batches._processor.process(PendingAccount(2, "x"))
        assert (failed.outcome, failed.message) == (
            "failed",
            "PortalStatusError: accounts answered with status 404",
        )
        await batches._processor._processor.aclose()  # type: ignore[attr-defined] # an UpstreamProcessor
        await upstreams.aclose()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"message": "hi", "x": 1}', "hi"),
        (b'{"message": 1}', '{"message": 1}'),
        (b"[1]", "[1]"),
        (b"plain \xff", "plain \ufffd"),
    ],
)
def test_message__of_a_response__is_its_member_or_the_whole_body(body: bytes, message: str) -> None:
    assert processor._parse_message(body) == message


@async_test
async def test_open_batches__invalid_processor__is_reported_with_its_location(
    plain: Database, tmp_path: Path
) -> None:
    config = service_config(tmp_path, batch_processor="nothing")
    upstreams = Upstreams(config.settings)
    with pytest.raises(ValueError, match="COMPORTA_SERVICE_BATCH_PROCESSOR: processor must have"):
        open_batches(config, plain, upstreams, BatchComponents())
    await upstreams.aclose()


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        ({}, DatabaseSheets),
        ({"batch_sheets": "files"}, LocalSheets),
        ({"batch_sheets": "google"}, GoogleSheets),
        ({"batch_google_credentials": "key.json"}, GoogleSheets),
        ({"batch_google_credentials": "key.json", "batch_sheets": "database"}, DatabaseSheets),
    ],
)
@async_test
async def test_open_batches__setting_and_credentials__select_where_sheets_are(
    plain: Database, tmp_path: Path, variables: dict[str, str], kind: type[Any]
) -> None:
    config = service_config(tmp_path, **variables)
    upstreams = Upstreams(config.settings)
    batches = open_batches(config, plain, upstreams, BatchComponents())
    assert type(batches._sheets) is kind
    await batches.aclose(0)
    await upstreams.aclose()


@async_test
async def test_open_batches__google_endpoint__uses_google_sheets(plain: Database, tmp_path: Path) -> None:
    config = service_config(
        tmp_path,
        batch_google_endpoint="http://127.0.0.1:1",
        batch_processor="tests.service.batch.processors:greet",
    )
    upstreams = Upstreams(config.settings)
    batches = open_batches(config, plain, upstreams, BatchComponents())
    assert isinstance(batches._sheets, GoogleSheets)
    assert batches._sheets.quota is not None
    await batches.aclose(0)
    await upstreams.aclose()


# -- sheets as files


def rows(*names: str) -> list[dict[str, str]]:
    return [{"account": name, "message": f"hello {name}"} for name in names]


def test_local_sheets__same_marker__is_the_same_file_under_any_name(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "new" / "folder")
    first = sheets.create("a/b: ../c", "mark")
    again = sheets.create("another", "mark")
    assert again.id == first.id
    assert again.url == first.url == ""  # clients cannot open a path of the server
    other = sheets.create("///", "other")
    assert {path.name for path in sheets.directory.glob("*.csv")} == {
        f"a b .. c-{first.id}.csv",
        f"sheet-{other.id}.csv",
    }


def test_local_sheet__rows_written_twice__are_stored_once(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    one, two = sheets.sink(made.id), sheets.sink(made.id)
    for sink, names in ((one, "ab"), (two, "bc"), (one, "abcd"), (two, "a"), (two, "dee")):
        sink.open()
        sink.write(rows(*names))
        sink.close()
    assert file_accounts(sheets, made.id) == dict.fromkeys("abcde", 1)
    sheets.close()


def test_local_sheet__torn_row_of_a_killed_process__is_written_again(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a", "b"))
    path = sheets._find(made.id)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-5])
    sink.write(rows("b", "c"))
    assert file_accounts(sheets, made.id) == {"a": 1, "b": 1, "c": 1}


def test_local_sheet__file_replaced__is_read_again(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a", "b"))
    sink.write(rows("a"))
    path = sheets._find(made.id)
    assert path is not None
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    sink.write(rows("a"))
    assert file_accounts(sheets, made.id) == {"a": 1}


def test_local_sheet__file_of_any_length__costs_a_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink, other = sheets.sink(made.id), sheets.sink(made.id)
    names = accounts(2_000)
    scanned, parsed = 0, 0
    plain_pread, plain_reader = os.pread, csv.reader

    def counted_pread(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal scanned
        data = plain_pread(descriptor, length, offset)
        scanned += len(data)
        return data

    def counted_reader(lines: Iterable[str]) -> Iterator[list[str]]:
        nonlocal parsed
        for record in plain_reader(lines):
            parsed += 1
            yield record

    sink.write(rows(*names[:50]))
    other.write(rows(*names[50:100]))
    monkeypatch.setattr(os, "pread", counted_pread)
    monkeypatch.setattr(csv, "reader", counted_reader)
    for start in range(100, 2_000, 50):
        (sink, other)[start // 50 % 2].write(rows(*names[start : start + 50]))
    path = sheets._find(made.id)
    assert path is not None
    assert parsed == 1_900 - 50 + 50  # what the other one wrote, once; the last write is not read
    assert scanned < path.stat().st_size
    monkeypatch.undo()
    assert file_accounts(sheets, made.id) == each_once(2_000)


def test_local_sheet__torn_row_of_another_writer__is_cut_off(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a"))
    path = sheets._find(made.id)
    assert path is not None
    with path.open("ab") as file:
        file.write(b'"b","hello b"\r\n"c","hel')
    sink.write(rows("b", "c"))
    assert file_accounts(sheets, made.id) == {"a": 1, "b": 1, "c": 1}


def test_local_sheet__disk_full__writes_nothing_and_can_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a"))

    def write_half(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(local_sheets, "write_all", write_half)
        with pytest.raises(SinkUnavailableError, match="No space left on device"):
            sink.write(rows("b"))
    assert file_accounts(sheets, made.id) == {"a": 1}
    sink.write(rows("b"))
    assert file_accounts(sheets, made.id) == {"a": 1, "b": 1}


def test_local_sheet__many_writers__every_row_is_stored_once(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    names = accounts(200)

    def write(number: int) -> None:
        sink = sheets.sink(made.id)
        for start in range(0, 200, 10):
            place = (start + 50 * number) % 200
            sink.write(rows(*names[place : place + 10]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert file_accounts(sheets, made.id) == each_once(200)


def test_local_sheet__formulas__are_written_as_text(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sheets.sink(made.id).write(
        [{"account": "=1+1", "message": "@x"}, {"account": "=1+1", "message": "again"}]
    )
    path = sheets._find(made.id)
    assert path is not None
    with path.open(newline="") as lines:
        assert list(csv.reader(lines)) == [["account", "message"], ["'=1+1", "again"]]


def test_local_sheet__removed_or_never_created__is_missing(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    path = sheets._find(made.id)
    assert path is not None
    path.unlink()
    with pytest.raises(SinkNotFoundError, match="was removed"):
        sink.open()
    for name in (made.id, "*", "../x"):
        with pytest.raises(SinkNotFoundError, match="no sheet"):
            sheets.sink(name)


def test_local_sheet__locked_by_another_process__is_busy_after_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_sheets, "LOCK_TIMEOUT_SECONDS", 0.05)
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    path = sheets._find(made.id)
    assert path is not None
    sink = LocalSheet(path)
    with (
        local_sheets._exclusive_lock(sink._lock_path),
        pytest.raises(SinkBusyError, match="locked by another process") as caught,
    ):
        sink.write(rows("a"))
    assert caught.value.retry_after == 1.0


def test_local_sheets__directory_cannot_be_created__is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailableError):
        LocalSheets(tmp_path / "file" / "folder").create("x", "mark")
