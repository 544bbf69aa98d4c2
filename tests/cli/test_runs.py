"""``comporta run --shared`` and ``comporta runs``: one run of several processes, and its progress."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.cli_runner import run, run_json
from tests.pipeline.shared_runs import change, done_lines, overview, select
from tests.support import wait_until

from comporta.testing import PostgresServer, SimulatedUpstream
from comporta.testing.http_server import HttpRequest

TIMEOUT_SECONDS = 120.0


class RecordedUpstream(SimulatedUpstream):
    """Keeps the requests, and answers 404 to some paths."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[HttpRequest] = []

    async def _respond(self, request: HttpRequest) -> Any:
        self.requests.append(request)
        return await super()._respond(request)


@pytest.fixture
def server() -> Iterator[RecordedUpstream]:
    with RecordedUpstream() as server:
        yield server


@pytest.fixture
def output(empty_database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a database without a password, which is in the environment."""
    before, at, after = empty_database_url.rpartition("@")
    scheme, _, password = before.rpartition(":")
    if at:
        monkeypatch.setenv("PGPASSWORD", password)
    return f"{scheme}@{after}" if at else empty_database_url


def lines(tmp_path: Path, count: int = 20, name: str = "in.txt") -> Path:
    path = tmp_path / name
    path.write_text("".join(f"n{number}\n" for number in range(1, count + 1)))
    return path


def options(server: SimulatedUpstream, output: str, *more: str, path: str = "/{line}") -> list[str]:
    required = ["--url", server.url + path, "--output", output, "--shared", "--state", "memory://"]
    return [*required, "--limit", "100000/s", "--backoff", "0.01", *more]


def start(source: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "comporta.cli", "run", str(source), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refusal_text(source: Path, *arguments: str) -> str:
    result: Result = run("run", str(source), *arguments)
    assert result.exit_code == 2
    return result.stderr


# -- run --shared


def test_run__shared__writes_every_line_once(server: RecordedUpstream, output: str, tmp_path: Path) -> None:
    first = run("run", str(lines(tmp_path)), *options(server, output))
    assert first.exit_code == 0, first.output
    assert "Complete: 20 items in" in first.stdout
    assert ", table results: 20 rows." in first.stdout
    rows = select(output, "SELECT run, position, line, url, status FROM results ORDER BY position")
    assert [row[1:3] for row in rows] == [(number, number + 1) for number in range(20)]
    assert {row[0] for row in rows} == {overview(output).run_id}
    again = run("run", str(lines(tmp_path)), *options(server, output))
    assert again.exit_code == 0
    assert "Complete: 0 items in" in again.stdout
    assert "(0.0/s), 20 done by other processes." in again.stdout
    assert len(server.requests) == 20


def test_run__shared_by_three_processes_and_one_killed__writes_every_line_once(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    source = lines(tmp_path, 600)
    arguments = options(server, output, "--lease", "2", "--limit", "300/s")
    processes = [start(source, *arguments) for _ in range(3)]
    try:
        wait_until(lambda: done_lines(output) >= 50)
        processes[0].send_signal(signal.SIGKILL)
        ended = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes[1:]] == [0, 0], ended
    numbers = [row[0] for row in select(output, "SELECT line FROM results ORDER BY line")]
    assert numbers == list(range(1, 601))
    assert len(server.requests) >= 600


def test_run__shared_by_three_processes_with_a_key__calls_in_order(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,who\n" + "".join(f"{number},{number % 5}\n" for number in range(300)))
    arguments = options(server, output, "--key", "who", "--in-flight", "3", path="/{who}/{id}")
    processes = [start(source, *arguments) for _ in range(3)]
    try:
        ended = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    called = [tuple(map(int, request.path.strip("/").split("/"))) for request in server.requests]
    assert sorted(called) == sorted((number % 5, number) for number in range(300))
    for who in range(5):
        ids = [each for key, each in called if key == who]
        assert ids == sorted(ids)


@pytest.mark.unmeasured
def test_run__shared_and_interrupted__says_how_to_continue(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    process = start(lines(tmp_path, 500), *options(server, output, "--limit", "20/s"))
    try:
        wait_until(lambda: done_lines(output) >= 5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, stderr
    assert "To continue, run the same command again." in stdout
    assert overview(output).status == "waiting"
    result = run("run", str(lines(tmp_path, 500)), *options(server, output))
    assert result.exit_code == 0
    assert select(output, "SELECT count(*), count(DISTINCT line) FROM results") == [(500, 500)]


def test_run__shared_with_an_idempotency_key__sends_run_and_position(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    more = ("--idempotency-key", "--method", "POST", "--send-json")
    result = run("run", str(lines(tmp_path, 3)), *options(server, output, *more))
    assert result.exit_code == 0, result.output
    run_id = overview(output).run_id
    sent = sorted(request.headers["idempotency-key"] for request in server.requests)
    assert sent == [f"{run_id}-{position}" for position in range(3)]


def test_run__shared_with_a_key__calls_in_order(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("id,who\n" + "".join(f"{number},{number % 3}\n" for number in range(60)))
    result = run("run", str(source), *options(server, output, "--key", "who", path="/{who}/{id}"))
    assert result.exit_code == 0, result.output
    called = [tuple(map(int, request.path.strip("/").split("/"))) for request in server.requests]
    assert sorted(called) == sorted((number % 3, number) for number in range(60))
    for who in range(3):
        ids = [each for key, each in called if key == who]
        assert ids == sorted(ids)
    other = run("run", str(source), *options(server, output, path="/{who}/{id}"))
    assert other.exit_code == 1
    assert "need --key='who', got None" in other.stderr


def test_run__shared_and_json__names_the_run(server: RecordedUpstream, output: str, tmp_path: Path) -> None:
    result = run("run", str(lines(tmp_path)), *options(server, output, "--json"))
    summary = json.loads(result.stdout)
    assert summary["run"] == overview(output).run_id
    assert summary["output"].endswith(", table results")
    assert "@" not in summary["output"]


def test_run__other_file_under_the_same_name__is_refused(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    run("run", str(lines(tmp_path)), *options(server, output))
    result = run("run", str(lines(tmp_path, 21)), *options(server, output))
    assert result.exit_code == 1
    assert "has this name and other lines" in result.stderr


def test_run__shared_with_postgresql_and_a_local_state__warns(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    result = run("run", str(lines(tmp_path)), *options(server, output))
    assert ("processes on other machines do not share its limit" in result.stderr) == output.startswith(
        "postgresql"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "--resume: cannot be used with --shared: there is nothing to resume"),
        (["--append"], "--append: cannot be used with --shared"),
        (["--dead-letters", "x.jsonl"], "--dead-letters: cannot be used with --shared"),
        (["--output", "out.db"], "must be sqlite:///FILE or postgresql://USER@HOST/DATABASE with --shared"),
        (["--output", "mysql://u:secret@h/d"], "got 'mysql://h/d'"),
        (["--output", "sqlite:///"], "must be sqlite:///FILE"),
        (["--output", "postgresql://u:secret@h/d"], "must not contain a password"),
        (["--output", "postgresql://u@h/d?password=secret"], "must not contain a password"),
        (["--table", "sqlite_x"], "table must be a name that SQLite does not reserve"),
        (["--lease", "0.5"], "0.5 is not in the range"),
    ],
)
def test_run__shared_with_a_wrong_option__is_refused(
    arguments: list[str], message: str, server: RecordedUpstream, tmp_path: Path
) -> None:
    given = options(server, f"sqlite:///{tmp_path}/out.db", *arguments)
    text = " ".join(refusal_text(lines(tmp_path), *given).split())
    assert message in text
    assert "secret" not in text


def test_run__shared_from_a_pipe__is_refused(server: RecordedUpstream, tmp_path: Path) -> None:
    text = refusal_text(Path("-"), *options(server, f"sqlite:///{tmp_path}/out.db"))
    assert "must be a file, which every worker reads" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lease", "5"], "--lease: needs --shared"),
        (["--idempotency-key"], "--idempotency-key: needs --shared"),
        (
            ["--output", "postgresql://u:secret@h/d"],
            "must be a file without --shared, got 'postgresql://h/d'",
        ),
    ],
)
def test_run__option_of_shared_runs_alone__is_refused(
    arguments: list[str], message: str, server: RecordedUpstream, tmp_path: Path
) -> None:
    given = ["--url", f"{server.url}/{{line}}", "--output", str(tmp_path / "out.db"), *arguments]
    text = refusal_text(lines(tmp_path), *given)
    assert message in text
    assert "secret" not in text


# -- runs


@pytest.fixture
def finished_run(server: RecordedUpstream, output: str, tmp_path: Path) -> str:
    """Return the id of a run that is finished, with a dead letter."""
    source = tmp_path / "in.txt"
    source.write_text("n1\nn2\n\xff\n", encoding="latin-1")
    result = run("run", str(source), *options(server, output))
    assert result.exit_code == 3, result.output
    assert f"1 dead letter; to list it: comporta runs dead {overview(output).run_id}" in result.stdout
    return overview(output).run_id


def test_runs_list__finished_run__shows_its_counts(finished_run: str, output: str) -> None:
    [record] = run_json("runs", "list", "--database", output)
    assert (record["run"], record["name"], record["status"]) == (finished_run, "in.txt", "finished")
    assert (record["lines"], record["done"], record["written"], record["dead"]) == (3, 3, 2, 1)
    assert (record["method"], record["table"], record["workers_live"]) == ("GET", "results", 0)
    text = run("runs", "list", "--database", output).stdout
    assert finished_run in text
    assert "finished" in text


def test_runs_show__finished_run__shows_its_workers(finished_run: str, output: str) -> None:
    record: Any = json.loads(run("runs", "show", finished_run, "--database", output, "--json").stdout)
    [worker] = record["workers"]
    assert (worker["written"], worker["dead"], worker["held"], worker["is_live"]) == (2, 1, 0, False)
    text = run("runs", "show", "in.txt", "--database", output).stdout
    assert "3 of 3 done: 2 with rows, 1 dead letter, 0 without rows" in text
    assert "ended" in text
    assert "Finished 2" in text


def test_runs_show__run_at_work__shows_rates_and_held_lines(
    server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    def shown() -> str:
        return run("runs", "show", "in.txt", "--database", output).stdout

    process = start(lines(tmp_path, 2000), *options(server, output, "--limit", "20/s", "--lease", "6"))
    try:
        wait_until(lambda: done_lines(output))
        wait_until(lambda: " left" in shown())
        text = shown()
        refusal = run("runs", "remove", "in.txt", "--database", output)
        removal = run("runs", "remove", "in.txt", "--database", output, "--force", "--json")
        stderr = process.communicate(timeout=TIMEOUT_SECONDS)[1]
    finally:
        process.kill()
        process.wait()
    assert "running" in text
    assert "live" in text
    assert "has 1 live process: " in refusal.stderr
    assert json.loads(removal.stdout)["removed"] is True
    assert process.returncode == 1
    assert "was removed" in stderr


def test_runs_show__run_that_is_not_loaded__says_how_many_lines_are(finished_run: str, output: str) -> None:
    change(output, "UPDATE comporta_runs SET loaded_at_us = NULL, finished_at_us = NULL")
    change(output, "DELETE FROM comporta_run_workers")
    text = run("runs", "show", finished_run[:6], "--database", output).stdout
    assert "waiting" in text
    assert "0 of 3 loaded so far done" in text


def test_runs_dead__run_with_a_dead_letter__is_input_of_another_run(
    finished_run: str, output: str, tmp_path: Path
) -> None:
    printed = run("runs", "dead", finished_run, "--database", output).stdout
    [letter] = [json.loads(line) for line in printed.splitlines()]
    assert printed.endswith("}\n")
    assert run_json("runs", "dead", finished_run, "--database", output) == [letter]
    change(output, "DELETE FROM comporta_run_dead_letters")
    assert run("runs", "dead", finished_run, "--database", output).stdout == ""
    assert run_json("runs", "dead", finished_run, "--database", output) == []
    assert letter["reason"] == "line 3 is not UTF-8: byte 1 is 0xff"
    assert letter["id"] == f"{finished_run}-2"


def test_runs_remove__finished_run__keeps_its_rows(finished_run: str, output: str) -> None:
    result = run("runs", "remove", finished_run, "--database", output)
    assert result.stdout == f"Removed run {finished_run} (in.txt).\n"
    assert select(output, "SELECT count(*) FROM results") == [(2,)]
    for table in ("comporta_runs", "comporta_run_workers", "comporta_run_dead_letters"):
        assert select(output, f"SELECT count(*) FROM {table}") == [(0,)]  # noqa: S608 - our own names
    assert "No shared run in" in run("runs", "list", "--database", output).stdout


def test_runs__unknown_run__is_refused(finished_run: str, output: str) -> None:
    result = run("runs", "show", "nope", "--database", output)
    assert result.exit_code == 2
    assert "must name a run in" in result.stderr


def test_runs__name_of_several_runs__is_refused(
    finished_run: str, server: RecordedUpstream, output: str, tmp_path: Path
) -> None:
    run("run", str(tmp_path / "in.txt"), *options(server, output, path="/other/{line}"))
    result = run("runs", "show", "in.txt", "--database", output)
    assert result.exit_code == 2
    assert "'in.txt' names several runs" in result.stderr


def test_runs__database_without_runs__lists_none(tmp_path: Path, postgres: PostgresServer) -> None:
    missing = f"sqlite:///{tmp_path}/missing.db"
    assert "No shared run in" in run("runs", "list", "--database", missing).stdout
    assert not (tmp_path / "missing.db").exists()
    assert run("runs", "list", "--database", missing, "--json").stdout == "[]\n"
    assert run("runs", "dead", "x", "--database", missing).exit_code == 2
