"""The parts of batches by themselves: the whitelist, threads by role, processors, sheets as files."""

from __future__ import annotations

import asyncio
import csv
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import accounts, in_file, once
from tests.service.running import awaited, config

from comporta.database.base import Database
from comporta.errors import (
    CircuitOpenError,
    RefusedError,
    SinkBusyError,
    SinkMissingError,
    SinkUnavailableError,
)
from comporta.service.batch import local, processing
from comporta.service.batch.local import LocalSheet, LocalSheets
from comporta.service.batch.opening import BatchPlugs, open_batches
from comporta.service.batch.processing import Processing, cleaned, load_processor
from comporta.service.batch.roles import Role
from comporta.service.batch.sheets import GoogleSheets
from comporta.service.batch.values import Account, Done
from comporta.service.batch.whitelist import Whitelist
from comporta.testing import ManualClock, SimulatedUpstream
from comporta.upstream.upstreams import Upstreams

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
def test_is_digital__user_and_team__the_users_own_record_goes_first(
    database: Database, team: str | None, digital: bool | None, of_team: bool | None, expected: bool
) -> None:
    whitelist = Whitelist(database)
    if of_team is not None:
        whitelist.set_team("blue", digital=of_team)
    whitelist.set_user("ana", team=team, digital=digital)
    assert whitelist.is_digital("ana") is expected
    assert whitelist.is_digital("nobody") is False


def test_is_digital__read_before__is_known_for_five_minutes(plain: Database) -> None:
    clock = ManualClock()
    whitelist, other = Whitelist(plain, clock=clock), Whitelist(plain)
    assert not whitelist.is_digital("ana")
    other.set_user("ana", digital=True)
    clock.advance(299)
    assert whitelist.known("ana") is False
    clock.advance(2)
    assert whitelist.known("ana") is None
    assert whitelist.is_digital("ana")


def test_is_digital__changed_here__is_not_what_was_known(plain: Database) -> None:
    whitelist = Whitelist(plain)
    assert not whitelist.is_digital("ana")
    whitelist.set_user("ana", team="blue")
    assert not whitelist.is_digital("ana")
    whitelist.set_team("blue", digital=True)
    assert whitelist.is_digital("ana")


def test_is_digital__more_users_than_are_kept__forgets_the_oldest(plain: Database) -> None:
    whitelist = Whitelist(plain, users_max=2)
    for user in ("a", "b", "a", "c"):
        whitelist.is_digital(user)
    assert [whitelist.known(user) for user in ("a", "b", "c")] == [None, False, False]


# -- threads


@awaited
async def test_role__more_than_may_wait__is_refused() -> None:
    role, go = Role("test", 1, waiting_max=2), threading.Lock()
    with go:
        waiting = [asyncio.create_task(role.run(go.acquire)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(RefusedError, match="2 calls are waiting"):
            await role.run(int)
        waiting[1].cancel()
    assert await waiting[0]
    go.release()
    assert await role.run(int, "7") == 7
    with pytest.raises(ZeroDivisionError):
        await role.run(divmod, 1, 0)
    role.close()


@awaited
async def test_role__cancelled_before_its_turn__is_never_done() -> None:
    role, go = Role("test", 1), threading.Lock()
    done: list[int] = []
    with go:
        first = asyncio.create_task(role.run(go.acquire))
        second = asyncio.create_task(role.run(done.append, 1))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
    await first
    await role.run(int)
    assert done == []
    role.close()


# -- processors


async def echo(account: str) -> str:
    return account


class Made:
    async def __call__(self, account: str) -> str:
        return account


NO_FUNCTION = 7


@pytest.mark.parametrize("name", ["echo", "Made"])
@awaited
async def test_load_processor__function_or_class__is_called_with_accounts(name: str) -> None:
    found: Any = load_processor(f"{__name__}:{name}")
    assert await found("a") == "a"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nothing", ValueError),
        ("no.such.module:name", ValueError),
        (f"{__name__}:nothing", ValueError),
        (f"{__name__}:NO_FUNCTION", TypeError),
    ],
)
def test_load_processor__nothing_to_call__says_what_is_allowed(name: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="processor must be"):
        load_processor(name)


@awaited
async def test_processing__refused__is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = 3

    async def refused(account: str) -> str:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise CircuitOpenError("accounts", "open", None, 0.001)
        return "well"

    role = Role("test", 1)
    assert await Processing(refused, role).done(Account(1, "a")) == Done(1, "a", "success", "well")
    refusals = 10**6
    monkeypatch.setattr(processing, "REFUSALS_MAX", 3)
    done = await Processing(refused, role).done(Account(1, "a"))
    assert done.outcome == "failed"
    assert done.message.startswith("CircuitOpenError: accounts: the circuit is open")


@awaited
async def test_processing__no_text__is_shown_as_text() -> None:
    async def number(account: str) -> Any:
        return 42

    assert (await Processing(number, Role("test", 1)).done(Account(1, "a"))).message == "42"


def test_cleaned__control_characters__become_spaces() -> None:
    assert cleaned("\0 a\tb\x7f\r\nc\ud800 ") == "a b  \nc?"
    assert len(cleaned("x" * 100_000)) == 40_000


@awaited
async def test_upstream_processor__answers__become_messages(plain: Database, tmp_path: Path) -> None:
    with SimulatedUpstream() as server:
        told = config(tmp_path, batch_address=server.url, allow_private_addresses="true")
        upstreams = Upstreams(told.settings)
        batches = open_batches(told, plain, upstreams, BatchPlugs())
        assert batches._processing is not None
        done = await batches._processing.done(Account(1, "a b&c"))
        assert done == Done(1, "a b&c", "success", '{"status": 200}')
        server.status = 404
        failed = await batches._processing.done(Account(2, "x"))
        assert (failed.outcome, failed.message) == ("failed", "SourceError: accounts answered 404")
        await batches._processing._processor.aclose()  # type: ignore[attr-defined] # it is the upstream's
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
def test_message__of_an_answer__is_its_member_or_all_of_it(body: bytes, message: str) -> None:
    assert processing._message(body) == message


@awaited
async def test_open_batches__processor_that_is_none__is_told_with_its_place(
    plain: Database, tmp_path: Path
) -> None:
    told = config(tmp_path, batch_processor="nothing")
    upstreams = Upstreams(told.settings)
    with pytest.raises(ValueError, match="COMPORTA_SERVICE_BATCH_PROCESSOR: processor must be"):
        open_batches(told, plain, upstreams, BatchPlugs())
    await upstreams.aclose()


@awaited
async def test_open_batches__endpoint_of_google__sheets_are_googles(plain: Database, tmp_path: Path) -> None:
    told = config(
        tmp_path,
        batch_google_endpoint="http://127.0.0.1:1",
        batch_processor="tests.service.batch.processors:greet",
    )
    upstreams = Upstreams(told.settings)
    batches = open_batches(told, plain, upstreams, BatchPlugs())
    assert isinstance(batches._sheets, GoogleSheets)
    assert batches._sheets.quota is not None
    await batches.aclose(0)
    await upstreams.aclose()


# -- sheets as files


def rows(*names: str) -> list[dict[str, str]]:
    return [{"account": name, "message": f"hello {name}"} for name in names]


def test_local__same_mark__is_the_same_file_whatever_its_name(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "new" / "folder")
    first = sheets.create("a/b: ../c", "mark")
    again = sheets.create("another", "mark")
    assert again.id == first.id
    assert again.url == first.url
    assert first.url.endswith(f"/a%20b%20..%20c-{first.id}.csv")
    assert sheets.create("///", "other").url.endswith(f"/sheet-{sheets.create('x', 'other').id}.csv")


def test_local__rows_twice__are_there_once(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    one, two = sheets.sink(made.id), sheets.sink(made.id)
    for sink, names in ((one, "ab"), (two, "bc"), (one, "abcd"), (two, "a"), (two, "dee")):
        sink.open()
        sink.write(rows(*names))
        sink.close()
    assert in_file(sheets, made.id) == dict.fromkeys("abcde", 1)
    sheets.close()


def test_local__half_a_row_of_a_killed_process__is_written_again(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a", "b"))
    path = sheets._found(made.id)
    assert path is not None
    path.write_bytes(path.read_bytes()[:-5])
    sink.write(rows("b", "c"))
    assert in_file(sheets, made.id) == {"a": 1, "b": 1, "c": 1}


def test_local__file_begun_anew_by_somebody__is_read_anew(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    sink.write(rows("a", "b"))
    sink.write(rows("a"))
    path = sheets._found(made.id)
    assert path is not None
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    sink.write(rows("a"))
    assert in_file(sheets, made.id) == {"a": 1}


def test_local__many_writers__every_row_is_there_once(tmp_path: Path) -> None:
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
    assert in_file(sheets, made.id) == once(200)


def test_local__formulas__are_text(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sheets.sink(made.id).write(
        [{"account": "=1+1", "message": "@x"}, {"account": "=1+1", "message": "again"}]
    )
    path = sheets._found(made.id)
    assert path is not None
    with path.open(newline="") as lines:
        assert list(csv.reader(lines)) == [["account", "message"], ["'=1+1", "again"]]


def test_local__removed_or_never_made__is_missing(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    sink = sheets.sink(made.id)
    path = sheets._found(made.id)
    assert path is not None
    path.unlink()
    with pytest.raises(SinkMissingError, match="somebody removed it"):
        sink.open()
    for name in (made.id, "*", "../x"):
        with pytest.raises(SinkMissingError, match="there is no sheet"):
            sheets.sink(name)


def test_local__held_by_another__is_busy_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOCK_SECONDS", 0.05)
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    path = sheets._found(made.id)
    assert path is not None
    sink = LocalSheet(path)
    with local._alone(sink._lock), pytest.raises(SinkBusyError, match="others held it") as caught:
        sink.write(rows("a"))
    assert caught.value.retry_after == 1.0


def test_local__folder_that_cannot_be_made__is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailableError):
        LocalSheets(tmp_path / "file" / "folder").create("x", "mark")
