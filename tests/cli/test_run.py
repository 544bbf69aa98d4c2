"""``comporta run`` calls an endpoint for every line, and writes a row or a dead letter for each."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.cli_runner import run
from tests.cli.pseudo_terminal import PseudoTerminal
from tests.support import assert_within, wait_until

from comporta.breaker.config import BreakerConfig
from comporta.cli import run as run_command
from comporta.cli.run_url_template import ColumnError, UrlTemplate
from comporta.events import Event, latest_events, listen
from comporta.pipeline.dead_letters import DeadLetters
from comporta.testing import SimulatedUpstream
from comporta.testing.http_server import Disconnect, HttpRequest, HttpServer

TIMEOUT_SECONDS = 120.0
SLOW_BODY = b"Content-Length: 100000\r\n\r\n"


@pytest.fixture
def server() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as server:
        yield server


class RawServer(HttpServer):
    """Sends these bytes as its answers, then always the last one, and closes each connection.

    After an answer that ends in ``SLOW_BODY`` it sends one byte at a time.
    """

    def __init__(self, *answers: bytes) -> None:
        super().__init__()
        self._answers = list(answers)
        self.request_count = 0

    async def _respond(self, request: HttpRequest) -> bytes | Disconnect:
        self.request_count += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            answer = await self._respond(HttpRequest("GET", "", {}, {}, b""))
            assert isinstance(answer, bytes)
            writer.write(answer)
            while answer.endswith(SLOW_BODY):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)  # sleeps: the server sends its body slowly
            await writer.drain()
        writer.close()
        self._writers.discard(writer)


def options(server: HttpServer, output: Path, *more: str, path: str = "/{line}") -> list[str]:
    required = ["--url", server.url + path, "--output", str(output), "--state", "memory://"]
    return [*required, "--limit", "100000/s", "--backoff", "0.01", *more]


def run_file(source: Path | str, *arguments: str) -> Result:
    return run("run", str(source), *arguments)


def lines(tmp_path: Path, count: int = 20) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"n{number}\n" for number in range(1, count + 1)))
    return path


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(result: Result) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_run__lines_to_json_lines__writes_a_row_for_each(server: SimulatedUpstream, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = run_file(lines(tmp_path), *options(server, output))
    assert result.exit_code == 0, result.output
    rows = sorted(rows_in(output), key=lambda row: row["line"])
    assert [row["line"] for row in rows] == list(range(1, 21))
    assert (rows[0]["input"], rows[0]["url"]) == ("n1", f"{server.url}/n1")
    assert (rows[0]["status"], rows[0]["body"], rows[0]["attempts"]) == (200, {"status": 200}, 1)
    assert result.stdout.startswith("Complete: 20 items in 0:00:0")
    assert f"{output}: 20 rows." in result.stdout
    assert server.accepted == 20


def test_run__csv_to_csv__has_the_same_columns_as_text(server: SimulatedUpstream, tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("id,q\n1,a b\n2,=HYPERLINK()\n")
    assert run_file(source, *options(server, output, path="/{id}?q={q}")).exit_code == 0
    first, second = sorted(csv.DictReader(output.read_text().splitlines()), key=lambda row: row["line"])
    assert (first["url"], first["body"]) == (f"{server.url}/1?q=a%20b", '{"status": 200}')
    assert json.loads(second["input"]) == {"id": "2", "q": "=HYPERLINK()"}
    assert first["repeated"] == ""


@pytest.mark.parametrize("suffix", ["db", "sqlite", "sqlite3"])
def test_run__json_lines_to_sqlite__writes_a_table(
    server: SimulatedUpstream, tmp_path: Path, suffix: str
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / f"out.{suffix}"
    source.write_text('{"id": 1}\n{"id": true}\n')
    result = run_file(source, *options(server, output, "--table", "answers", path="/{id}"))
    assert result.exit_code == 0, result.output
    with closing(sqlite3.connect(output)) as connection:
        rows = connection.execute("SELECT line, url, status FROM answers ORDER BY line").fetchall()
    assert rows == [(1, f"{server.url}/1", 200), (2, f"{server.url}/true", 200)]


def test_run__error_statuses__are_dead_letters_that_are_valid_input(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    server.next_statuses = [404, 410]
    first = run_file(lines(tmp_path), *options(server, output, "--in-flight", "1"))
    assert first.exit_code == 3
    dead = tmp_path / "out.jsonl.dead.jsonl"
    assert f"{dead}: 2 dead letters; to retry them, use this file as INPUT." in first.stdout
    assert [letter["reason"] for letter in rows_in(dead)] == [
        'HttpStatusError: 404 {"status": 404}',
        'HttpStatusError: 410 {"status": 410}',
    ]
    refused = run_file(dead, *options(server, output, "--append"))
    assert refused.exit_code == 2
    assert "is INPUT: results and dead letters need other files" in refused.stderr
    again = run_file(dead, *options(server, output, "--append", "--dead-letters", str(tmp_path / "d2")))
    assert again.exit_code == 0, again.output
    assert sorted(row["line"] for row in rows_in(output)) == list(range(1, 21))


def test_run__accepted_status__is_a_result(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.next_statuses = [404]
    output = tmp_path / "out.jsonl"
    result = run_file(lines(tmp_path, 2), *options(server, output, "--accept", "404", "--json"))
    assert result.exit_code == 0
    assert sorted(row["status"] for row in rows_in(output)) == [200, 404]
    assert (summary(result)["written"], summary(result)["ended"]) == (2, "complete")


def test_run__occasional_server_errors__are_retried(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.next_statuses = [500, 502, 500]
    output = tmp_path / "out.jsonl"
    result = run_file(lines(tmp_path, 3), *options(server, output, "--in-flight", "1", "--json"))
    assert result.exit_code == 0
    assert summary(result)["retries"] == 3
    assert max(row["attempts"] for row in rows_in(output)) == 4
    again = run_file(lines(tmp_path, 3), *options(server, tmp_path / "o.jsonl", "--in-flight", "1"))
    assert ", 3 retries." not in again.stdout


@pytest.mark.parametrize(("name", "more"), [("lowered", []), ("kept", ["--no-degradation"])])
def test_run__429__lowers_the_limit_unless_told_not_to(
    server: SimulatedUpstream, tmp_path: Path, name: str, more: list[str]
) -> None:
    server.next_statuses = [429]
    arguments = ["--upstream", name, *more]
    result = run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl", *arguments))
    assert result.exit_code == 0, result.output
    assert server.accepted == 2
    published = [event.kind for event in latest_events() if event.source == name]
    assert ("limit_degraded" in published) == (name == "lowered")


def test_run__429_or_503__waits_as_long_as_patience_lasts(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.retry_after = False
    server.next_statuses = [503, 429, 503]
    output = tmp_path / "out.jsonl"
    one = ("--in-flight", "1", "--retries", "0")
    assert run_file(lines(tmp_path, 3), *options(server, output, *one)).exit_code == 0
    server.status = 429
    impatient = run_file(
        lines(tmp_path, 1), *options(server, tmp_path / "2.jsonl", *one, "--patience", "0.2")
    )
    assert impatient.exit_code == 3
    [letter] = rows_in(tmp_path / "2.jsonl.dead.jsonl")
    assert letter["reason"].startswith("HttpStatusError: 429")


def test_run__post_answered_with_503__is_not_sent_again(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.next_statuses = [503]
    output = tmp_path / "out.jsonl"
    more = ("--method", "POST", "--send-json", "--in-flight", "1")
    assert run_file(lines(tmp_path, 2), *options(server, output, *more)).exit_code == 3
    assert server.accepted == 2


def test_run__answer_too_long__is_a_dead_letter(server: SimulatedUpstream, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert run_file(lines(tmp_path, 1), *options(server, output, "--max-body", "5")).exit_code == 3
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert letter["reason"] == "BodyTooLongError: the answer is longer than 5 bytes (--max-body)"


def test_run__unusable_lines__are_dead_letters_with_their_line_numbers(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"id": 1}\nnonsense\n{"other": 1}\n{"id": ".."}\n\xff\n{"id": []}\n')
    assert run_file(source, *options(server, output, path="/{id}")).exit_code == 3
    reasons = {letter["position"]: letter["reason"] for letter in rows_in(tmp_path / "out.jsonl.dead.jsonl")}
    assert reasons[2].startswith("line 2 is not JSON")
    assert reasons[3] == "ColumnError: the item has no column 'id', only 'other'"
    assert "must not be empty, '.' or '..'" in reasons[4]
    assert reasons[5].startswith("line 5 is not UTF-8")
    assert "must be text or a number" in reasons[6]
    assert [row["line"] for row in rows_in(output)] == [1]


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("in.csv", ["--url", "http://h/{idd}"], "--url: {0} has no column 'idd', only 'id', 'q'"),
        ("in.csv", ["--key", "who"], "--key: {0} has no column 'who', only 'id', 'q'"),
        ("in.txt", [], "--url: {0} has no column 'id', only 'line'"),
    ],
)
def test_run__unknown_column__is_a_usage_error_and_creates_no_file(
    server: SimulatedUpstream, tmp_path: Path, name: str, more: list[str], message: str
) -> None:
    source, output = tmp_path / name, tmp_path / "out.jsonl"
    source.write_text("id,q\n1,a\n2,b\n")
    result = run_file(source, *options(server, output, path="/{id}"), *more)
    assert result.exit_code == 2
    assert message.format(source) in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_run__resumed__calls_only_what_is_left(server: SimulatedUpstream, tmp_path: Path) -> None:
    source, output = lines(tmp_path), tmp_path / "out.jsonl"
    run_file(source, *options(server, output))
    accepted = server.accepted
    done = run_file(source, *options(server, output, "--resume"))
    assert (done.exit_code, server.accepted) == (0, accepted)
    assert "20 done earlier" in done.stdout
    for more, message in (
        ([], "already exists"),
        (["--append"], "an earlier run of these files left the checkpoint"),
    ):
        refused = run_file(source, *options(server, output, *more))
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split())
    with source.open("a") as file:
        file.write("another\n")
    changed = run_file(source, *options(server, output, "--resume"))
    assert changed.exit_code == 1
    assert "size_bytes was" in changed.stderr


def test_run__resumed_after_dead_letters__still_exits_with_3(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    server.next_statuses = [404]
    run_file(source, *options(server, output))
    result = run_file(source, *options(server, output, "--resume", "--json"))
    assert (result.exit_code, summary(result)["dead_before"], summary(result)["dead"]) == (3, 1, 0)


def test_run__existing_output_without_checkpoint__is_not_overwritten(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("mine\n")
    for more, message in (
        ([], "already exists: use --resume to continue a run, or use --append"),
        (["--resume"], "there is no run to resume: write to another file, or use --append"),
    ):
        refused = run_file(lines(tmp_path), *options(server, output, *more))
        assert refused.exit_code == 2
        assert message in " ".join(refused.stderr.split())
    result = run_file(lines(tmp_path), *options(server, output, "--append"))
    assert result.exit_code == 1
    assert "the file exists and does not hold JSON objects" in result.stderr
    assert output.read_text() == "mine\n"


def test_run__key_option__calls_one_after_another(server: SimulatedUpstream, tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id,k\n" + "".join(f"{number},same\n" for number in range(20)))
    server.delay = 0.002
    assert run_file(source, *options(server, output, "--key", "k", path="/{id}")).exit_code == 0
    assert server.max_in_flight == 1
    assert [row["line"] for row in rows_in(output)] == list(range(2, 22))


def test_run__settings_file__configures_the_upstream(server: SimulatedUpstream, tmp_path: Path) -> None:
    config, output = tmp_path / "comporta.toml", tmp_path / "out.jsonl"
    config.write_text('state = "memory://"\n[upstreams.books]\nlimit = "1000/s"\ndegradation = false\n')
    more = ("--config", str(config), "--upstream", "books")
    assert run_file(lines(tmp_path), *options(server, output, *more)).exit_code == 0
    unknown = run_file(lines(tmp_path), *options(server, tmp_path / "2.jsonl", "--config", str(config)))
    assert unknown.exit_code == 2
    assert "upstream must be one of 'books'" in unknown.stderr


def test_run__headers__are_sent_and_secrets_come_from_the_environment(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_TOKEN", "secret")
    more = ("--header", "X-One: 1", "--header-env", "Authorization=RUN_TOKEN")
    assert run_file(lines(tmp_path, 1), *options(server, tmp_path / "o.jsonl", *more)).exit_code == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config", "/absent/comporta.toml"], "cannot read /absent/comporta.toml: No such file"),
        (["--header", "nonsense"], "must have the form 'Name: value'"),
        (["--header-env", "A=ABSENT_VARIABLE"], "must name an environment variable that is set"),
        (["--limit", "nonsense"], "limit must look like"),
        (["--upstream", "a b"], "key must be|name must be"),
        (["--state", "ftp://x"], "--state: state must start with one of"),
        (["--output", "x.db", "--table", ""], "table must be a name"),
        (["--output", "x.db", "--table", "sqlite_x"], "table must be a name"),
        (["--state", "http://x"], "not of a web page"),
        (["--output", "x.pdf"], "must end in one of .jsonl"),
        (["--output", "no/such/x.jsonl"], "--output: must be in an existing directory, got 'no/such/x"),
        (["--url", "ftp://host/{line}"], "url must start with http"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_run__wrong_option__fails_with_one_sentence_and_creates_no_file(
    server: SimulatedUpstream, tmp_path: Path, more: list[str], message: str
) -> None:
    result = run_file(lines(tmp_path), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 2
    assert any(part in " ".join(result.stderr.split()) for part in message.split("|"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_run__missing_input__fails_with_one_sentence(server: SimulatedUpstream, tmp_path: Path) -> None:
    result = run_file(tmp_path / "absent.txt", *options(server, tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert f"cannot read {tmp_path}/absent.txt: No such file" in result.stderr


# in a separate process --------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "comporta.cli", "run", *arguments]


def test_run__standard_input__is_read_once(server: SimulatedUpstream, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    done = subprocess.run(
        command("-", *options(server, output)),
        input="a\nb\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(row["input"] for row in rows_in(output)) == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.dead.jsonl"]
    assert run_file("-", *options(server, tmp_path / "2.jsonl", "--resume")).exit_code == 2


@pytest.mark.parametrize("times", [1, 2])
def test_run__interrupted__ends_and_is_resumed(server: SimulatedUpstream, tmp_path: Path, times: int) -> None:
    """One signal: the run completes the calls in flight. Two signals: it does not."""
    source, output = lines(tmp_path, 300), tmp_path / "out.jsonl"
    server.delay = 0.1 if times == 1 else 30.0
    with subprocess.Popen(command(str(source), *options(server, output)), stdout=subprocess.PIPE) as process:
        wait_until(lambda: server.accepted >= 10)
        output_bytes = _interrupt(process, times)
    assert process.returncode == 130
    assert output_bytes.decode().startswith("Drained" if times == 1 else "Stopped")
    assert "To continue, run the same command with --resume." in output_bytes.decode()
    server.delay = 0.0
    assert run_file(source, *options(server, output, "--resume")).exit_code == 0
    assert sorted(row["line"] for row in rows_in(output)) == list(range(1, 301))


def _interrupt(process: subprocess.Popen[bytes], times: int) -> bytes:
    """Send this many interrupts. Two that arrive together count as one, so send more if needed."""
    process.send_signal(signal.SIGINT)
    while times > 1 and process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # signals that follow each other at once may be merged
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    return process.communicate(timeout=TIMEOUT_SECONDS)[0]


def test_run__terminal__shows_its_progress(server: SimulatedUpstream, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    server.delay = 0.05
    with subprocess.Popen(
        command(str(lines(tmp_path, 100)), *options(server, tmp_path / "out.jsonl")),
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
    ) as process:
        os.close(slave)
        drawn = b""
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(master, 65536):
                drawn += chunk
    os.close(master)
    assert process.returncode == 0
    assert b"of about 100 done" in drawn
    assert b"limit 100000/s" in drawn


def test_run__circuit_open_at_80_columns__says_until_when_and_what_ctrl_c_does(tmp_path: Path) -> None:
    source = lines(tmp_path, 200)
    words = ("--url", "http://127.0.0.1:1/{line}", "--output", str(tmp_path / "out.jsonl"))
    with PseudoTerminal("run", str(source), *words, "--state", "memory://", columns=80) as terminal:
        drawn = terminal.wait_for("circuit open until ")
        terminal.type(b"\x03")
        drawn += terminal.wait_for("press Ctrl-C again to stop at once.")
        assert "Finishing 10 items in progress; " in drawn
        assert " left" not in terminal.wait_for(", stopping").rpartition("━")[2]
        terminal.type(b"\x03")
        code, rest = terminal.wait()
    assert code == 130
    assert "Stopped: 0 items in " in rest
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn).replace("^C", "")  # which the terminal shows
    bars = [line for line in re.split(r"[\r\n]", text) if "━" in line]
    assert bars
    assert [bar for bar in bars if len(bar) > 80] == []
    assert "0:00:00" not in drawn


def test_run__complete_at_80_columns__last_line_of_the_bar_is_true(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.status = 404  # every line is a dead letter
    words = (str(lines(tmp_path, 30)), *options(server, tmp_path / "out.jsonl", "--retries", "0"))
    with PseudoTerminal("run", *words, columns=80) as terminal:
        code, drawn = terminal.wait()
    assert code == 3
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    bars = [line for line in re.split(r"[\r\n]", text) if "━" in line]
    assert "30 done, " in bars[-1]
    assert "30 dead letters" in bars[-1]
    assert " left" not in bars[-1]
    assert [line for line in text.splitlines() if len(line) > 80 and "━" in line] == []
    assert "gave up line 1: HttpStatusError: 404" in text


def test_run__first_ctrl_c_in_a_pipe__says_what_it_finishes(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.delay = 0.1
    with subprocess.Popen(
        command(str(lines(tmp_path, 300)), *options(server, tmp_path / "out.jsonl")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: server.accepted >= 10)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    text = r"Finishing \d+ items? in progress; press Ctrl-C again to stop at once\.\n"
    assert re.search(text, errors)


def test_run__failed_items__dead_letters_count_attempts_and_name_line_and_key(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id\na-1\n")
    server.status = 500
    events: list[Event] = []
    stop_listening = listen(events.append)
    ran = run_file(
        source, *options(server, output, "--retries", "2", "--backoff", "0", "--key", "id", path="/{id}")
    )
    stop_listening()
    [letter] = DeadLetters.read(f"{output}.dead.jsonl")
    assert (letter.attempts, letter.position, letter.key) == (3, 2, "a-1")
    [event] = [each for each in events if each.kind == "pipeline_dead_letter"]
    assert event.text.startswith("gave up line 2 (key 'a-1'): HttpStatusError: 500 ")
    assert event.text.endswith("(1 dead letter in this run)")
    assert ran.stdout.splitlines()[0].startswith("Complete: 1 item in ")
    assert "1 dead letter; to retry it, use this file as INPUT." in ran.stdout


def test_run__url_without_columns__needs_yes(server: SimulatedUpstream, tmp_path: Path) -> None:
    source, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    same = ["--url", server.url, "--output", str(output), "--state", "memory://"]
    refused = run_file(source, *same)
    assert refused.exit_code == 2
    assert "has no column in braces, so every item of INPUT would make the same call" in refused.stderr
    assert not output.exists()
    assert run_file(source, *same, "--yes").exit_code == 0
    assert len(rows_in(output)) == 3


# URL templates --------------------------------------------------------------------------------------------


def test_url_template__values__are_escaped() -> None:
    template = UrlTemplate("https://host/a/{x}?q={y}&r={{}}")
    assert (template.host, template.columns) == ("host", ["x", "y"])
    assert (
        template.render({"x": "../b?c#d/é", "y": "1&2=3"})
        == "https://host/a/..%2Fb%3Fc%23d%2F%C3%A9?q=1%262%3D3&r={}"
    )
    assert UrlTemplate("HTTP://host:8080/{line}").host == "host"
    assert UrlTemplate("http://host:8080/{line}").render("text") == "http://host:8080/text"
    with pytest.raises(ColumnError, match="must be text or a number to be part of a URL, got None"):
        template.render({"x": None, "y": 1})


@pytest.mark.parametrize(
    "wrong",
    ["", "host/{x}", "https://{host}/x", "https://a{b}.com/", "https://host/{", "https://host/{}",
     "https://host/{x!r}", "https://host/{x:d}", "gopher://host/{x}", "https://[::1/{x}"],
)  # fmt: skip
def test_url_template__invalid__is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="url must"):
        UrlTemplate(wrong)


def test_run__named_pipe__loses_no_line_and_writes_no_checkpoint(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", f"printf 'a\\nb\\nc\\n' > {pipe}"])
    try:
        result = summary(run_file(pipe, *options(server, output, "--json")))
    finally:
        writer.kill()
        writer.wait()
    assert (result["written"], result["checkpoint"]) == (3, None)
    assert "it is a pipe" in run_file(pipe, *options(server, output, "--resume")).output


def test_run__results_and_dead_letters_in_one_file__is_a_usage_error(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    result = run_file(lines(tmp_path), *options(server, output, "--dead-letters", str(output)))
    assert result.exit_code == 2
    assert "--dead-letters: must not be the same file" in result.output


@pytest.mark.parametrize(
    ("option", "value"), [("--header", "X Y: 1"), ("--header", "X: \xe9"), ("--header-env", "=TOKEN_OF_TEST")]
)
def test_run__invalid_header__is_a_usage_error_before_any_call(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "value")
    result = run_file(lines(tmp_path), *options(server, tmp_path / "out.jsonl", option, value))
    assert (result.exit_code, server.accepted) == (2, 0)
    assert f"Invalid value for {option}" in result.output


def test_run__invalid_secret__is_not_shown(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "hidden\nvalue")
    more = ("--header-env", "Authorization=TOKEN_OF_TEST")
    result = run_file(lines(tmp_path), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 2
    assert "hidden" not in result.output


def test_url_template__port_out_of_range__is_a_value_error() -> None:
    with pytest.raises(ValueError, match="a port of 0 to 65535"):
        UrlTemplate("http://127.0.0.1:99999/{line}")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "db"])
def test_run__append_another_input__overwrites_no_row_and_marks_none_as_repeated(
    server: SimulatedUpstream, tmp_path: Path, suffix: str
) -> None:
    output = tmp_path / f"out.{suffix}"
    for name in ("a", "b"):
        source = tmp_path / f"{name}.txt"
        source.write_text(f"{name}1\n{name}2\n")
        result = run_file(source, *options(server, output, "--append"))
        assert result.exit_code == 0, result.output
    if suffix == "db":
        with closing(sqlite3.connect(output)) as connection:
            rows = [row[0] for row in connection.execute("SELECT input FROM results")]
    else:
        rows = [text for text in output.read_text().splitlines() if "/a" in text or "/b" in text]
        assert not any('"yes"' in text or "repeated" in text for text in rows)
    assert len(rows) == 4


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "db"])
def test_run__append_the_same_input__marks_or_replaces_its_rows(
    server: SimulatedUpstream, tmp_path: Path, suffix: str
) -> None:
    source, output = lines(tmp_path, 2), tmp_path / f"out.{suffix}"
    run_file(source, *options(server, output))
    Path(f"{output}.in.txt.checkpoint").unlink()
    assert run_file(source, *options(server, output, "--append")).exit_code == 0
    if suffix == "db":
        with closing(sqlite3.connect(output)) as connection:
            assert connection.execute("SELECT count(*) FROM results").fetchone() == (2,)
    else:
        assert (
            sum('"yes"' in text or '"repeated": true' in text for text in output.read_text().splitlines())
            == 2
        )


def test_run__resumed_without_its_output__is_a_usage_error(server: SimulatedUpstream, tmp_path: Path) -> None:
    source, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    run_file(source, *options(server, output))
    output.unlink()
    checkpoint = tmp_path / "out.jsonl.in.txt.checkpoint"
    refused = run_file(source, *options(server, output, "--resume"))
    assert refused.exit_code == 2
    assert "out.jsonl is missing, but 3 rows were written to it" in " ".join(refused.stderr.split())
    assert not output.exists()
    checkpoint.write_text("nonsense")
    broken = run_file(source, *options(server, output, "--resume"))
    assert (broken.exit_code, "checkpoint file is corrupt" in broken.stderr) == (1, True)
    checkpoint.unlink()
    assert run_file(source, *options(server, output, "--resume")).exit_code == 0
    assert len(rows_in(output)) == 3


def test_run__resumed_with_another_table__names_both_and_creates_none(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, output = lines(tmp_path, 3), tmp_path / "out.db"
    run_file(source, *options(server, output, "--table", "companies"))
    refused = run_file(source, *options(server, output, "--table", "others", "--resume"))
    assert refused.exit_code == 1
    assert "--table was 'companies', is 'others'" in refused.stderr
    with closing(sqlite3.connect(output)) as database:
        assert database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [
            ("companies",)
        ]
    assert run_file(source, *options(server, output, "--table", "companies", "--resume")).exit_code == 0


def test_run__another_run_appended__only_a_complete_run_can_be_resumed(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, other, output = lines(tmp_path, 3), tmp_path / "other.txt", tmp_path / "out.jsonl"
    other.write_text("o1\n")
    run_file(source, *options(server, output))
    run_file(other, *options(server, output, "--append"))
    assert run_file(source, *options(server, output, "--resume")).exit_code == 0
    checkpoint = tmp_path / "out.jsonl.other.txt.checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace('"complete": true', '"complete": false'))
    with output.open("a") as file:
        file.write("{}\n")
    refused = run_file(other, *options(server, output, "--resume"))
    assert refused.exit_code == 1
    assert "this run did not write the last 3 bytes" in refused.stderr
    assert (len(rows_in(output)), server.accepted) == (5, 4)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (["--url", "http://localhost/other/{line}"], "--url was 'http://"),
        (["--method", "DELETE"], "--method was 'GET', is 'DELETE'"),
        (["--dead-letters", "other.dead.jsonl"], "--dead-letters was '"),
    ],
)
def test_run__resumed_with_another_option__names_both_and_creates_no_file(
    server: SimulatedUpstream,
    tmp_path: Path,
    changed: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    source, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    run_file(source, *options(server, output))
    before = sorted(tmp_path.iterdir())
    refused = run_file(source, *options(server, output, "--resume", *changed))
    assert refused.exit_code == 1
    assert message in refused.stderr
    assert "Resume the run as it was" in refused.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert server.accepted == 3


def test_run__failure_opens_the_circuit__the_item_still_gets_its_retries(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    server.next_statuses = [500] * 5
    result = run_file(lines(tmp_path, 5), *options(server, output, "--in-flight", "5", "--json"))
    assert result.exit_code == 0, result.output
    assert (summary(result)["dead"], summary(result)["retries"], server.accepted) == (0, 5, 10)
    assert [row["attempts"] for row in rows_in(output)] == [2] * 5


def test_run__server_always_fails__every_item_has_all_retries_and_no_more(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_command, "BREAKER", BreakerConfig(cooldown_seconds=0.05))
    server.status = 500
    output = tmp_path / "out.jsonl"
    result = run_file(lines(tmp_path, 4), *options(server, output, "--in-flight", "2", "--json"))
    assert (result.exit_code, summary(result)["dead"]) == (3, 4)
    assert (summary(result)["retries"], server.accepted) == (12, 16)


def test_run__post_fails_and_opens_the_circuit__is_not_sent_again(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.status = 500
    given = options(server, tmp_path / "out.jsonl", "--method", "POST", "--in-flight", "1", "--json")
    result = run_file(lines(tmp_path, 5), *given)
    assert (summary(result)["dead"], server.accepted) == (5, 5)


def test_run__server_down_for_5_s__costs_at_most_15_s_and_no_dead_letter(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    server.delay, server.status = 0.01, 500
    given = ["--url", f"{server.url}/{{line}}", "--output", str(output), "--state", "memory://", "--json"]
    recovery = threading.Timer(5.0, lambda: setattr(server, "status", 200))
    recovery.start()
    result = run_file(lines(tmp_path, 40), *given, "--limit", "1000/s")
    recovery.join()
    assert result.exit_code == 0, result.output
    assert summary(result)["written"] == 40
    assert summary(result)["seconds"] < 15.5


def test_run__connections_refused_for_5_s__costs_at_most_15_s_and_no_dead_letter(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.delay = 0.01
    outage = threading.Thread(target=refuse_connections, args=(server, 5.0))
    outage.start()
    given = ["--url", f"{server.url}/{{line}}", "--output", str(tmp_path / "out.jsonl"), "--json"]
    result = run_file(lines(tmp_path, 100), *given, "--state", "memory://", "--limit", "50/s")
    outage.join()
    assert result.exit_code == 0, result.output
    assert summary(result)["written"] == 100
    assert_within(summary(result)["seconds"], 2 + 15, "a run of 2 s with an outage of 5 s")


def refuse_connections(server: SimulatedUpstream, seconds: float) -> None:
    """Close the port of a server for some time, once it has accepted five requests."""
    wait_until(lambda: server.accepted >= 5)
    server.close()
    with socket.socket() as holder:  # nothing else gets the port meanwhile
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", server.port))
        threading.Event().wait(seconds)
        server.start()


def test_run__csv_resumed_with_another_table__ignores_the_table(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source, output = lines(tmp_path, 3), tmp_path / "out.csv"
    run_file(source, *options(server, output, "--table", "companies"))
    assert run_file(source, *options(server, output, "--resume")).exit_code == 0


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


def test_run__truncated_answer__is_retried(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", WHOLE) as server:
        result = run_file(lines(tmp_path, 1), *options(server, output, "--json"))
    assert (result.exit_code, summary(result)["retries"], server.request_count) == (0, 1, 2)
    [row] = rows_in(output)
    assert (row["body"], row["attempts"]) == ({}, 2)


def test_run__slow_body__times_out_and_is_retried(tmp_path: Path) -> None:
    with RawServer(b"HTTP/1.1 200 OK\r\n" + SLOW_BODY, WHOLE) as server:
        more = ("--timeout", "0.5", "--json")
        result = run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl", *more))
    assert (result.exit_code, server.request_count) == (0, 2)


def test_run__settings_file_without_a_timeout__the_option_applies(tmp_path: Path) -> None:
    config = tmp_path / "comporta.toml"
    config.write_text('state = "memory://"\n[upstreams.books]\nlimit = "1000/s"\nretry = false\n')
    with RawServer(b"HTTP/1.1 200 OK\r\n" + SLOW_BODY) as server:
        more = ("--timeout", "0.2", "--config", str(config), "--upstream", "books")
        result = run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 3
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert "Timeout" in letter["reason"]


@pytest.mark.parametrize("rest", [SLOW_BODY, b"Content-Length: 8000\r\n\r\n" + b"y" * 8000])
def test_run__error_answer_slow_or_long__is_reported_by_its_status(tmp_path: Path, rest: bytes) -> None:
    with RawServer(b"HTTP/1.1 404 Not Found\r\n" + rest) as server:
        more = ("--max-body", "10")
        result = run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl", *more))
    assert (result.exit_code, server.request_count) == (3, 1)
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert letter["reason"].startswith("HttpStatusError: 404")


def test_run__compressed_answer__is_decompressed(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": 1}')
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    with RawServer(head.encode() + packed) as server:
        assert run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl")).exit_code == 0
    assert rows_in(tmp_path / "out.jsonl")[0]["body"] == {"a": 1}


@pytest.mark.parametrize("body", ["NaN", '{"a": [-Infinity]}', '{"a": 1e999}'])
def test_run__answer_with_invalid_json_numbers__stays_text(tmp_path: Path, body: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with RawServer(head.encode() + body.encode()) as server:
        assert run_file(lines(tmp_path, 1), *options(server, tmp_path / "out.jsonl")).exit_code == 0
    assert rows_in(tmp_path / "out.jsonl")[0]["body"] == body


def test_run__unsendable_item__does_not_count_the_retries_of_the_previous_one(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1}\n{"id": 2, "x": NaN}\n')
    server.next_statuses = [500, 500]
    more = ("--method", "PUT", "--send-json", "--in-flight", "1", "--json")
    result = run_file(source, *options(server, tmp_path / "out.jsonl", *more, path="/{id}"))
    assert (result.exit_code, summary(result)["dead"], summary(result)["retries"]) == (3, 1, 2)
