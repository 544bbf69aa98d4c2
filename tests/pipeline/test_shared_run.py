"""Shared runs: workers claim lines of a table, and settle them in the transaction that writes their rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.shared_runs import change, check_settled_once, overview, select, sink_of, step
from tests.support import wait_until, wait_until_async

from comporta import Pipeline
from comporta.database.base import Database, RunStatement, Statement
from comporta.database.command import Command, execute
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseUnavailableError,
    PipelineError,
    SourceError,
)
from comporta.events import latest_events
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import FileSource, SourceEntry
from comporta.pipeline.shared_run import (
    RunLine,
    TableSource,
    commands,
    line_loader,
    outage,
    progress_log,
    reader,
    run_identity,
    sql,
)
from comporta.pipeline.shared_run.commands import claim_loading, list_workers, register_worker
from comporta.pipeline.shared_run.migrations import MIGRATIONS
from comporta.pipeline.shared_run.models import LineCounts, LoadLease, RunSession
from comporta.pipeline.sinks import CsvSink, SinkTransaction, TransactionalSink


@pytest.fixture
def url(empty_database_url: str) -> str:
    return empty_database_url


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url, 30.0)
    yield opened
    opened.close()


def lines(tmp_path: Path, count: int = 200, name: str = "input.txt") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"item {number}\n" for number in range(1, count + 1)))
    return path


def pipeline_of(
    url: str, source: Any, each: Callable[[Any], Any] = step, *, sink: bool = True, **options: Any
) -> Pipeline:
    """Return a worker of a shared run; options of its source are those that ``TableSource`` has."""
    names = ("name", "identity", "options", "lease_seconds", "as_lines")
    table = TableSource(url, source, **{name: options.pop(name) for name in names if name in options})
    options = {"number": "line", "max_delay": 0.01, "workers": 5, **options}
    return Pipeline(table, each, sink_of(url) if sink else None, **options)


async def together(*pipelines: Pipeline) -> list[Report]:
    return await asyncio.gather(*(pipeline.run() for pipeline in pipelines))


def numbers(url: str) -> list[int]:
    return [row[0] for row in select(url, "SELECT line FROM results ORDER BY line")]


class Gate:
    """A step that waits for certain items until it is opened."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, item: str) -> dict[str, Any]:
        if item in self._texts:
            self.reached.set()
            await self.opened.wait()
        return {"attempt": "1"}


# -- runs


def test_shared_run__one_worker__settles_every_line_once(url: str, tmp_path: Path) -> None:
    report = pipeline_of(url, lines(tmp_path)).sync.run()
    check_settled_once(url, 200)
    assert (report.ended, report.done, report.written, report.dead) == ("complete", 200, 196, 2)
    assert (report.total, report.skipped, report.dead_before) == (200, 0, 0)
    again = pipeline_of(url, lines(tmp_path)).sync.run()
    assert (again.ended, again.done, again.skipped, again.dead_before) == ("complete", 0, 200, 2)
    check_settled_once(url, 200)


def test_shared_run__three_workers__share_the_lines(url: str, tmp_path: Path) -> None:
    path = lines(tmp_path, 1000)
    reports = asyncio.run(together(*(pipeline_of(url, path) for _ in range(3))))
    check_settled_once(url, 1000)
    assert sum(report.done for report in reports) == 1000
    assert [report.done + report.skipped for report in reports] == [1000] * 3


def test_shared_run__blocking_step_and_no_sink__settles_every_line(url: str, tmp_path: Path) -> None:
    seen: list[str] = []
    report = pipeline_of(url, lines(tmp_path, 50), seen.append, sink=False).sync.run()
    assert sorted(seen) == sorted(f"item {number}" for number in range(1, 51))
    assert (report.done, overview(url).counts) == (50, LineCounts(0, 0, 50))


def test_shared_run__empty_file__is_complete(url: str, tmp_path: Path) -> None:
    assert pipeline_of(url, lines(tmp_path, 0)).sync.run().ended == "complete"
    assert overview(url).finished_at is not None


def test_shared_run__list_of_json_values__is_a_source(url: str) -> None:
    source = pipeline_of(url, [{"n": 1}, ["x"], 2.5], lambda item: None, name="values", sink=False)
    assert source.sync.run().done == 3


def test_shared_run__dead_letters__are_what_a_file_of_them_holds(url: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": 1}\nnot json\n{"id": 97}\n')
    pipeline_of(url, path, _fail).sync.run()
    stored = select(url, "SELECT letter FROM comporta_run_dead_letters ORDER BY position")
    letters = [json.loads(row[0]) for row in stored]
    assert [letter["item"] for letter in letters] == [{"id": 1}, "not json", {"id": 97}]
    assert [letter["position"] for letter in letters] == [1, 2, 3]
    assert letters[0]["reason"] == "KeyError: 'name'"
    assert letters[0]["id"] == f"{overview(url).run_id}-0"
    (tmp_path / "again.dead.jsonl").write_text("".join(f"{row[0]}\n" for row in stored))
    again = [entry.item for entry in FileSource(tmp_path / "again.dead.jsonl").entries()]
    assert again == [{"id": 1}, "not json", {"id": 97}]


def _fail(item: Any) -> Any:
    return {"name": item["name"]}


def test_shared_run__row_that_the_sink_refuses__is_a_dead_letter(url: str, tmp_path: Path) -> None:
    async def each(item: str) -> list[dict[str, Any]]:
        attempt = None if item in ("item 3", "item 5") else item
        return [{"attempt": f"{item} a"}, {"attempt": attempt}]

    report = pipeline_of(url, lines(tmp_path, 10), each, max_rows=10).sync.run()
    assert (report.written, report.dead) == (8, 2)
    assert sorted(set(numbers(url))) == [1, 2, 4, 6, 7, 8, 9, 10]
    assert len(numbers(url)) == 16
    [first, second] = select(url, "SELECT letter FROM comporta_run_dead_letters ORDER BY position")
    assert "no value for the key 'attempt'" in json.loads(first[0])["reason"]
    assert json.loads(second[0])["item"] == "item 5"


def test_shared_run__drained__releases_its_lines(url: str, tmp_path: Path) -> None:
    async def scenario() -> Report:
        gate = Gate("item 1")
        pipeline = pipeline_of(url, lines(tmp_path, 100), gate, workers=1)
        running = asyncio.create_task(pipeline.run())
        await gate.reached.wait()
        pipeline.drain()
        gate.opened.set()
        return await running

    report = asyncio.run(scenario())
    assert (report.ended, report.written) == ("drained", 1)
    left = select(url, "SELECT count(*) FROM comporta_run_lines WHERE owner = '' AND attempts = 0")
    assert left == [(99,)]
    assert overview(url).status == "waiting"
    assert pipeline_of(url, lines(tmp_path, 100), Gate()).sync.run().written == 99


def test_shared_run__worker_silent_for_too_long__loses_its_lines(url: str, tmp_path: Path) -> None:
    """The other worker settles them; the rows and dead letters of the slow one are dropped."""

    async def slow(item: str) -> dict[str, Any] | None:
        attempt = await gate(item)
        if item == "item 2":
            raise ValueError("too late")
        return attempt

    async def scenario() -> tuple[Report, Report]:
        source = lines(tmp_path, 3)
        first = asyncio.create_task(pipeline_of(url, source, slow, lease_seconds=600.0).run())
        await gate.reached.wait()
        await asyncio.to_thread(wait_until, lambda: _count_held(url) == 3)
        command = "UPDATE comporta_run_lines SET owner = 'a worker that ended' WHERE owner <> ''"
        await asyncio.to_thread(change, url, command)
        report = await pipeline_of(url, source, Gate(), lease_seconds=600.0).run()
        gate.opened.set()
        return await first, report

    gate = Gate("item 1", "item 2", "item 3")
    first, second = asyncio.run(scenario())
    assert (first.done, first.skipped, second.done) == (0, 3, 3)
    assert numbers(url) == [1, 2, 3]
    assert overview(url).counts == LineCounts(3, 0, 0)
    assert any(event.kind == "shared_run_lease_lost" for event in latest_events())


def _count_held(url: str) -> int:
    count: int = select(url, "SELECT count(*) FROM comporta_run_lines WHERE owner <> ''")[0][0]
    return count


def test_shared_run__worker_died__its_lines_are_claimed_after_the_lease(
    url: str, database: Database, tmp_path: Path
) -> None:
    path = lines(tmp_path, 20)
    assert _drained_at_once(pipeline_of(url, path, lease_seconds=1.0))
    ghost = RunSession(overview(url).run_id, "ghost", 1_000_000, False)
    execute(database, register_worker(ghost))
    wait_until(lambda: execute(database, commands.claim_lines(ghost, 20, None)))
    assert pipeline_of(url, path, lease_seconds=1.0).sync.run().done == 20
    check_settled_once(url, 20)


def _drained_at_once(pipeline: Pipeline) -> bool:
    """Load all lines, and settle none."""

    async def scenario() -> str:
        table = pipeline.source
        assert isinstance(table, TableSource)
        running = asyncio.create_task(Pipeline(table, gate, workers=1).run())
        await gate.reached.wait()
        database = open_database(table.database, 30.0)
        await wait_until_async(lambda: asyncio.to_thread(_is_loaded, database, table.run_id))
        database.close()
        running.cancel()
        await asyncio.wait([running])
        return table.run_id

    gate = Gate("item 1")
    return bool(asyncio.run(scenario()))


def _is_loaded(database: Database, run_id: str) -> bool:
    return bool(execute(database, commands.is_loaded(run_id)))


def test_shared_run__line_claimed_too_often__is_a_dead_letter(url: str, tmp_path: Path) -> None:
    path = lines(tmp_path, 5)
    assert _drained_at_once(pipeline_of(url, path))
    assert reader.ATTEMPTS_MAX == 20
    change(url, "UPDATE comporta_run_lines SET attempts = 20 WHERE position = 2")
    report = pipeline_of(url, path).sync.run()
    assert (report.written, report.dead) == (4, 1)
    [(letter,)] = select(url, "SELECT letter FROM comporta_run_dead_letters")
    assert json.loads(letter)["reason"] == "line 3 was claimed 20 times by workers that died"


def test_shared_run__removed_while_it_runs__ends_with_an_error(url: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        gate = Gate("item 1")
        running = asyncio.create_task(pipeline_of(url, lines(tmp_path, 1), gate).run())
        await gate.reached.wait()
        database = open_database(url, 30.0)
        execute(database, commands.delete_run(overview(url).run_id))
        database.close()
        gate.opened.set()
        await running

    with pytest.raises(PipelineError, match=r"input\.txt: run [0-9a-f]{16} was removed"):
        asyncio.run(scenario())
    assert select(url, "SELECT count(*) FROM comporta_run_workers") == [(0,)]


# -- order by key


def test_shared_run__with_a_key__keeps_the_order_across_workers(url: str, tmp_path: Path) -> None:
    """One of three workers is drained in the middle; its lines go to others, in order."""
    order: dict[int, list[int]] = {}

    async def each(item: str) -> dict[str, Any]:
        number = int(item.removeprefix("item "))
        order.setdefault(number % 7, []).append(number)
        await asyncio.sleep(0.001)  # sleeps: gives the other workers turns
        if len(order.get(0, ())) == 10:
            pipelines[0].drain()
        return {"attempt": "1"}

    path = lines(tmp_path, 400)
    pipelines = [
        pipeline_of(url, path, each, key=lambda item: int(item.removeprefix("item ")) % 7, capacity=20)
        for _ in range(3)
    ]
    reports = asyncio.run(together(*pipelines))
    assert sum(report.written for report in reports) == 400
    assert numbers(url) == list(range(1, 401))
    assert all(listed == sorted(listed) for listed in order.values())
    assert sum(map(len, order.values())) == 400


def test_shared_run__item_without_its_key__is_a_dead_letter(url: str, tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"k": 1}\n{"x": 2}\nnot json\n')
    pipeline = pipeline_of(url, path, lambda item: {"attempt": "1"}, key=lambda item: item["k"])
    report = pipeline.sync.run()
    assert (report.written, report.dead) == (1, 2)


# -- identity


def test_shared_run__other_lines_under_the_same_name__are_refused(url: str, tmp_path: Path) -> None:
    pipeline_of(url, lines(tmp_path, 5)).sync.run()
    with pytest.raises(PipelineError, match=r"has this name and other lines.*comporta runs remove"):
        pipeline_of(url, lines(tmp_path, 6)).sync.run()
    assert pipeline_of(url, lines(tmp_path, 6), identity={"url": "other"}).sync.run().written == 6


def test_shared_run__same_lines_under_another_name__are_the_same_run(url: str, tmp_path: Path) -> None:
    pipeline_of(url, lines(tmp_path, 5)).sync.run()
    assert pipeline_of(url, lines(tmp_path, 5, "copy.txt")).sync.run().skipped == 5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("key", lambda item: item, "need key=False, got True"),
        ("lease_seconds", 5.0, "need lease_seconds=30.0, got 5.0"),
        ("options", {"--key": "id"}, "need --key=None, got 'id'"),
    ],
)
def test_shared_run__worker_with_other_options__is_refused(
    option: str, value: Any, message: str, url: str, tmp_path: Path
) -> None:
    pipeline_of(url, lines(tmp_path, 5)).sync.run()
    with pytest.raises(PipelineError, match=message):
        pipeline_of(url, lines(tmp_path, 5), **{option: value}).sync.run()


def test_shared_run__as_lines__gives_steps_the_run_and_the_position(url: str, tmp_path: Path) -> None:
    seen: list[RunLine] = []
    pipeline = pipeline_of(url, lines(tmp_path, 2), seen.append, sink=False, as_lines=True, workers=1)
    pipeline.sync.run()
    run_id = overview(url).run_id
    assert seen == [RunLine(run_id, 0, 1, "item 1"), RunLine(run_id, 1, 2, "item 2")]
    assert seen[1].idempotency_key == f"{run_id}-1"


def test_shared_run__as_lines__dead_letter_has_the_item(url: str, tmp_path: Path) -> None:
    async def each(line: RunLine) -> None:
        raise ValueError

    pipeline_of(url, lines(tmp_path, 1), each, as_lines=True, key=lambda line: line.item).sync.run()
    [(letter,)] = select(url, "SELECT letter FROM comporta_run_dead_letters")
    assert json.loads(letter)["item"] == "item 1"


# -- loading


class ChangingSource:
    """A source that has other lines whenever it is read."""

    total = None

    def __init__(self) -> None:
        self._reads = 0

    def identity(self) -> dict[str, Any]:
        return {}

    def entries(self) -> Iterator[SourceEntry]:
        self._reads += 1
        yield SourceEntry(0, 0, f"read {self._reads}")


def test_shared_run__source_that_changes_while_loaded__ends_with_an_error(url: str) -> None:
    pipeline = pipeline_of(url, ChangingSource(), lambda item: None, sink=False, name="changes")
    with pytest.raises(SourceError, match=r"changes changed while it was loaded; run `comporta runs remove"):
        pipeline.sync.run()


def test_shared_run__loading_worker_died__another_continues_after_its_chunk(
    url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "CHUNK_LINES_MAX", 10)
    path = lines(tmp_path, 35)
    ghost, table = _ghost(database, url, path)
    lease = execute(database, claim_loading(ghost))
    assert lease is not None
    chunk = [("", run_identity.encode_entry(entry)) for entry in list(FileSource(path).entries())[:10]]
    with database.statement_transaction(30.0) as run:
        assert commands.add_lines(run, ghost, lease, chunk)
        assert not commands.add_lines(run, ghost, lease, chunk)
    assert overview(url).status == "loading"
    report = pipeline_of(url, path, lease_seconds=1.0).sync.run()
    assert report.done == 35
    check_settled_once(url, 35)
    assert not execute(database, commands.finish_loading(ghost, lease))
    assert table.name == "input.txt"


def _ghost(database: Database, url: str, path: Path) -> tuple[RunSession, TableSource]:
    """Create the run of a file, with a worker that does nothing."""
    table = TableSource(url, path, lease_seconds=1.0)
    migrate(database, MIGRATIONS)
    options = {"lease_seconds": 1.0, "key": False}
    wanted = run_identity.run_identity(table.name, run_identity.digest_of(table.source), {}, options)
    execute(database, commands.add_run(wanted))
    ghost = RunSession(wanted.run_id, "ghost", 1_000_000, False)
    execute(database, register_worker(ghost))
    return ghost, table


def test_loader__lease_lost_in_the_middle__adds_nothing_more(
    url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "CHUNK_CHARS_MAX", 1)
    ghost, table = _ghost(database, url, lines(tmp_path, 5))
    loading = line_loader.LineLoader(database, ghost, table, "", None)

    def add_lines(run: RunStatement, session: RunSession, lease: LoadLease, chunk: Any) -> bool:
        if lease.line_count == 2:
            run(Statement("UPDATE comporta_runs SET token = token + 1"), {})
            loading.stop()
        return commands.add_lines(run, session, lease, chunk)

    monkeypatch.setattr(line_loader, "add_lines", add_lines)
    loading.run()
    assert select(url, "SELECT count(*) FROM comporta_run_lines") == [(2,)]
    assert select(url, "SELECT line_count, loaded_at_us FROM comporta_runs") == [(2, None)]


def test_loader__stopped_between_chunks__lets_another_worker_continue(
    url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_loader, "CHUNK_LINES_MAX", 2)
    path = lines(tmp_path, 5)
    ghost, table = _ghost(database, url, path)
    loading = line_loader.LineLoader(database, ghost, table, run_identity.digest_of(table.source), None)

    def add_lines(run: RunStatement, session: RunSession, lease: LoadLease, chunk: Any) -> bool:
        loading.stop()
        return commands.add_lines(run, session, lease, chunk)

    monkeypatch.setattr(line_loader, "add_lines", add_lines)
    loading.run()
    assert overview(url).line_count == 2
    monkeypatch.undo()
    assert pipeline_of(url, path, lease_seconds=1.0).sync.run().done == 5


# -- outages of the database


def fail_commands(
    monkeypatch: pytest.MonkeyPatch, statement: Statement, times: int, on_failure: Callable[[], object] = int
) -> None:
    """Let the first commands that contain a statement fail, as if the database were busy."""
    failures = iter(range(times))

    def execute_or_fail(database: Database, command: Command[Any]) -> Any:
        if statement in command.statements and next(failures, None) is not None:
            on_failure()
            raise DatabaseBusyError("busy")
        return execute(database, command)

    monkeypatch.setattr(progress_log, "execute", execute_or_fail)


@pytest.mark.parametrize("statement", [sql.CLAIM_LINES, sql.READ_FINISHED], ids=["claim", "end"])
def test_reader__database_busy_for_a_moment__asks_again(
    statement: Statement, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commands(monkeypatch, statement, 4)
    assert pipeline_of(url, lines(tmp_path, 5)).sync.run().done == 5


@pytest.mark.parametrize("key", [None, lambda item: item[-1]], ids=["no_key", "key"])
def test_reader__reply_of_a_claim_lost__claims_these_lines_again(
    key: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines belong to this worker, and it does not know; later lines of their keys have to wait."""
    lost = iter([False, True, True])
    order: dict[str, list[int]] = {}

    def execute_and_lose(database: Database, command: Command[Any]) -> Any:
        result = execute(database, command)
        is_claim = {sql.CLAIM_LINES, sql.CLAIM_LINES_BY_KEY} & set(command.statements)
        if is_claim and result and next(lost, False):
            raise DatabaseUnavailableError("the reply was lost")
        return result

    async def each(item: str) -> dict[str, Any]:
        order.setdefault(item[-1], []).append(int(item.removeprefix("item ")))
        return {"attempt": "1"}

    monkeypatch.setattr(progress_log, "execute", execute_and_lose)
    report = pipeline_of(url, lines(tmp_path, 100), each, key=key, capacity=10).sync.run()
    assert report.written == 100
    assert numbers(url) == list(range(1, 101))
    assert next(lost, None) is None
    assert key is None or all(listed == sorted(listed) for listed in order.values())


def test_reader__database_busy_for_too_long__ends_the_worker(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commands(monkeypatch, sql.CLAIM_LINES, 2)
    monkeypatch.setattr(outage, "OUTAGE_SECONDS_MAX", -1.0)
    with pytest.raises(DatabaseBusyError):
        pipeline_of(url, lines(tmp_path, 5)).sync.run()
    assert overview(url).live_workers == 0


def test_outage__database_answers_in_between__is_another_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "OUTAGE_SECONDS_MAX", -1.0)
    backoff, error = outage.OutageBackoff(), DatabaseBusyError("busy")
    pauses = [backoff.next_pause(error), backoff.next_pause(), backoff.next_pause(error)]
    assert pauses[0] < pauses[2]
    with pytest.raises(DatabaseBusyError):
        backoff.next_pause(error)


def test_reader__drained_while_the_database_is_busy__claims_nothing(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> Report:
        loop = asyncio.get_running_loop()
        fail_commands(monkeypatch, sql.CLAIM_LINES, 10**9, lambda: loop.call_soon_threadsafe(pipeline.drain))
        return await pipeline.run()

    pipeline = pipeline_of(url, lines(tmp_path, 5))
    report = asyncio.run(scenario())
    assert (report.ended, report.done) == ("drained", 0)


def test_reader__stopped_while_the_database_is_busy__claims_nothing() -> None:
    async def scenario() -> list[list[SourceEntry]]:
        session = RunSession("run", "worker", 1_000_000, False)
        source = TableSource("sqlite:///x.db", [1], name="x")
        claims = reader.TableReader(fail, session, source, 5, set())
        stopped.append(claims)
        return [chunk async for chunk in claims]

    async def fail(command: Command[Any]) -> Any:
        stopped[0].stop()
        raise DatabaseBusyError("busy")

    stopped: list[reader.TableReader] = []
    assert asyncio.run(scenario()) == []


def test_loader__database_busy_for_a_moment__loads_later(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(3))

    def add_lines(run: RunStatement, session: RunSession, lease: LoadLease, chunk: Any) -> bool:
        if next(failures, None) is not None:
            raise DatabaseBusyError("busy")
        return commands.add_lines(run, session, lease, chunk)

    monkeypatch.setattr(line_loader, "add_lines", add_lines)
    assert pipeline_of(url, lines(tmp_path, 5)).sync.run().done == 5


def test_worker__database_busy_for_a_moment__settles_dead_letters_later(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter(range(3))

    def delete_lines(run: RunStatement, session: RunSession, positions: Any) -> frozenset[int]:
        if next(failures, None) is not None:
            raise DatabaseBusyError("busy")
        return commands.delete_lines(run, session, positions)

    monkeypatch.setattr(progress_log, "delete_lines", delete_lines)
    pipeline_of(url, lines(tmp_path, 200)).sync.run()
    check_settled_once(url, 200)


def test_worker__lease_that_cannot_be_renewed__is_an_event(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_commands(monkeypatch, sql.SET_RATE, 10**9)
    assert pipeline_of(url, lines(tmp_path, 5)).sync.run().done == 5
    assert any("cannot renew the lease: busy" in event.text for event in latest_events())


# -- workers and old runs


def test_workers__ended_long_ago__are_removed_and_their_counts_stay(
    url: str, database: Database, tmp_path: Path
) -> None:
    path = lines(tmp_path, 100)
    pipeline_of(url, path).sync.run()
    [worker] = execute(database, list_workers(overview(url).run_id))
    assert (worker.is_live, worker.held, worker.counts) == (False, 0, LineCounts(98, 1, 1))
    change(url, "UPDATE comporta_run_workers SET lease_until_us = lease_until_us - 3600000000")
    pipeline_of(url, path).sync.run()
    [other] = execute(database, list_workers(overview(url).run_id))
    assert other.worker != worker.worker
    assert overview(url).counts == LineCounts(98, 1, 1)


@pytest.mark.unmeasured
def test_worker__at_work__shows_its_lines_and_its_rate(url: str, database: Database, tmp_path: Path) -> None:
    async def each(item: str) -> dict[str, Any]:
        await asyncio.sleep(0.005)  # sleeps: the run lasts until the test has seen it
        return {"attempt": "1"}

    def is_at_work() -> bool:
        try:
            run = overview(url)
        except (DatabaseError, ValueError):  # the run does not exist yet
            return False
        seen[:] = [(run, *execute(database, list_workers(run.run_id)))]
        return run.rate > 0 and seen[0][1].held > 0

    async def scenario() -> Report:
        pipeline = pipeline_of(url, lines(tmp_path, 50_000), each, lease_seconds=1.0)
        running = asyncio.create_task(pipeline.run())
        await asyncio.to_thread(wait_until, is_at_work)
        pipeline.drain()
        return await running

    seen: list[Any] = []
    assert asyncio.run(scenario()).ended == "drained"
    [(run, worker)] = seen
    assert (run.live_workers, worker.is_live) == (1, True)
    assert 0 <= worker.first_position <= worker.last_position < 50_000


def test_rate__no_time_has_passed__is_zero() -> None:
    assert progress_log._rate([(5.0, 0), (5.0, 3)]) == 0.0


def test_runs__finished_long_ago__are_removed_by_the_next_one(url: str, tmp_path: Path) -> None:
    pipeline_of(url, lines(tmp_path, 97)).sync.run()
    pipeline_of(url, [1], lambda item: None, name="kept", sink=False).sync.run()
    change(
        url,
        "UPDATE comporta_runs SET finished_at_us = finished_at_us - 2600000000000 WHERE name = 'input.txt'",
    )
    pipeline_of(url, [2], lambda item: None, name="next", sink=False).sync.run()
    assert sorted(select(url, "SELECT name FROM comporta_runs")) == [("kept",), ("next",)]
    assert select(url, "SELECT count(*) FROM comporta_run_dead_letters") == [(0,)]
    assert len(numbers(url)) == 95


# -- invalid use


def test_pipeline__table_source_and_files__is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint must be None with a TableSource"):
        pipeline_of(url, lines(tmp_path), checkpoint=tmp_path / "x").sync.run()
    with pytest.raises(ValueError, match="dead_letters must be None with a TableSource"):
        pipeline_of(url, lines(tmp_path), dead_letters=tmp_path / "x").sync.run()


def test_pipeline__sink_without_the_table__is_refused(url: str, tmp_path: Path) -> None:
    table = TableSource(url, lines(tmp_path))
    with pytest.raises(ValueError, match="sink of a shared run must be a SqliteSink or a PostgresSink"):
        Pipeline(table, step, CsvSink(tmp_path / "out.csv")).sync.run()
    with pytest.raises(ValueError, match=r"must write to the database of its TableSource, .*got sqlite:"):
        Pipeline(table, step, sink_of(f"sqlite:///{tmp_path}/other.db")).sync.run()


def test_pipeline__table_source_of_an_unreachable_database__raises(tmp_path: Path) -> None:
    pipeline = pipeline_of(f"sqlite:///{tmp_path}/missing/x.db", lines(tmp_path), sink=False)
    with pytest.raises(Exception, match="unable to open database file"):
        pipeline.sync.run()


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (FileSource("-"), {}, "must be a file, which every worker reads"),
        (iter([1]), {"name": "x"}, "must be read more than once"),
        ([1], {}, "name is required for a shared run whose source is not a file"),
        ([1], {"name": "a b"}, "name must be 1 to 100 of"),
        ([1], {"name": "x", "lease_seconds": 0.5}, "lease_seconds must be 1 to 3600 seconds"),
    ],
)
def test_table_source__wrong_option__raises(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TableSource("sqlite:///x.db", source, **options)


def test_table_source__repr__names_the_run() -> None:
    assert repr(TableSource("sqlite:///x.db", Path("orders.csv"))) == "<TableSource 'orders.csv'>"


def test_digest__item_that_is_not_json__names_the_item() -> None:
    table = TableSource("sqlite:///x.db", [1, object()], name="x")
    with pytest.raises(SourceError, match="item 1 of a shared run must be JSON"):
        run_identity.digest_of(table.source)


def test_digest__too_many_lines__raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_identity, "LINES_MAX", 2)
    table = TableSource("sqlite:///x.db", [1, 2, 3], name="x")
    with pytest.raises(SourceError, match="at most 2 lines; split the file"):
        run_identity.digest_of(table.source)


# -- the transaction of a sink


def test_sink_transaction__error_in_the_block__writes_nothing(url: str) -> None:
    sink = sink_of(url, key="id")
    assert isinstance(sink, TransactionalSink)
    sink.open()
    try:
        with sink.transaction() as transaction:
            transaction.write([{"id": 1}])
        with pytest.raises(RuntimeError, match="no"):
            _write_and_fail(sink)
    finally:
        sink.close()
    assert select(url, "SELECT id FROM results") == [(1,)]


def _write_and_fail(sink: TransactionalSink) -> None:
    with sink.transaction() as transaction:
        _write(transaction)
        raise RuntimeError("no")


def _write(transaction: SinkTransaction) -> None:
    transaction.write([{"id": 2}])
