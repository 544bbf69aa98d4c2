"""``comporta run``: an endpoint called for every line, and what becomes of each."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.running import run as ran

from comporta.cli.run_address import Address, ColumnError
from comporta.testing import SimulatedUpstream
from comporta.testing.loopback import Loopback, NoAnswer, Request

PATIENCE_SECONDS = 120.0
DRIPS = b"Content-Length: 100000\r\n\r\n"


@pytest.fixture
def server() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as started:
        yield started


class Raw(Loopback):
    """Answers with these bytes, one after the other, and the last for ever; then ends the connection.

    A head that promises a long body is followed by one that drips.
    """

    def __init__(self, *answers: bytes) -> None:
        super().__init__()
        self._answers = list(answers)
        self.asked = 0

    async def answered(self, request: Request) -> bytes | NoAnswer:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            answer = await self.answered(Request("GET", "", {}, {}, b""))
            assert isinstance(answer, bytes)
            writer.write(answer)
            while answer.endswith(DRIPS):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
            await writer.drain()
        writer.close()


def options(server: Loopback, output: Path, *more: str, path: str = "/{line}") -> list[str]:
    where = ["--url", server.url + path, "--output", str(output), "--state", "memory://"]
    return [*where, "--limit", "100000/s", "--backoff", "0.01", *more]


def lines(tmp_path: Path, count: int = 20) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"n{number}\n" for number in range(1, count + 1)))
    return path


def rows_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(result: Result) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def test_run__lines_into_json_lines__is_a_row_for_each(server: SimulatedUpstream, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    result = ran("run", str(lines(tmp_path)), *options(server, output))
    assert result.exit_code == 0, result.output
    rows = sorted(rows_in(output), key=lambda row: row["line"])
    assert [row["line"] for row in rows] == list(range(1, 21))
    assert (rows[0]["input"], rows[0]["url"]) == ("n1", f"{server.url}/n1")
    assert (rows[0]["status"], rows[0]["body"], rows[0]["attempts"]) == (200, {"status": 200}, 1)
    assert result.stdout.startswith("Complete: 20 items in 0:00:0")
    assert f"{output}: 20 rows." in result.stdout
    assert server.accepted == 20


def test_run__csv_into_csv__has_the_same_columns_as_text(server: SimulatedUpstream, tmp_path: Path) -> None:
    given, output = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text("id,q\n1,a b\n2,=HYPERLINK()\n")
    assert ran("run", str(given), *options(server, output, path="/{id}?q={q}")).exit_code == 0
    first, second = sorted(csv.DictReader(output.read_text().splitlines()), key=lambda row: row["line"])
    assert (first["url"], first["body"]) == (f"{server.url}/1?q=a%20b", '{"status": 200}')
    assert json.loads(second["input"]) == {"id": "2", "q": "=HYPERLINK()"}
    assert first["repeated"] == ""


@pytest.mark.parametrize("ending", ["db", "sqlite", "sqlite3"])
def test_run__json_lines_into_sqlite__is_a_table(
    server: SimulatedUpstream, tmp_path: Path, ending: str
) -> None:
    given, output = tmp_path / "in.jsonl", tmp_path / f"out.{ending}"
    given.write_text('{"id": 1}\n{"id": true}\n')
    result = ran("run", str(given), *options(server, output, "--table", "answers", path="/{id}"))
    assert result.exit_code == 0, result.output
    with sqlite3.connect(output) as connection:
        found = connection.execute("SELECT line, url, status FROM answers ORDER BY line").fetchall()
    connection.close()
    assert found == [(1, f"{server.url}/1", 200), (2, f"{server.url}/true", 200)]


def test_run__answers_that_are_none__are_dead_letters_that_can_be_fed_in_again(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    server.upcoming = [404, 410]
    first = ran("run", str(lines(tmp_path)), *options(server, output, "--in-flight", "1"))
    assert first.exit_code == 3
    dead = tmp_path / "out.jsonl.dead.jsonl"
    assert f"{dead}: 2 dead letters; feed them in again as INPUT." in first.stdout
    assert [letter["reason"] for letter in rows_in(dead)] == [
        'HttpStatusError: 404 {"status": 404}',
        'HttpStatusError: 410 {"status": 410}',
    ]
    refused = ran("run", str(dead), *options(server, output, "--append"))
    assert refused.exit_code == 2
    assert "is read: results and dead letters need other files" in refused.stderr
    again = ran(
        "run", str(dead), *options(server, output, "--append", "--dead-letters", str(tmp_path / "d2"))
    )
    assert again.exit_code == 0, again.output
    assert sorted(row["line"] for row in rows_in(output)) == list(range(1, 21))


def test_run__status_that_is_accepted__is_a_result(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.upcoming = [404]
    output = tmp_path / "out.jsonl"
    result = ran("run", str(lines(tmp_path, 2)), *options(server, output, "--accept", "404", "--json"))
    assert result.exit_code == 0
    assert sorted(row["status"] for row in rows_in(output)) == [200, 404]
    assert (summary(result)["written"], summary(result)["ended"]) == (2, "complete")


def test_run__upstream_that_fails_now_and_then__is_retried(server: SimulatedUpstream, tmp_path: Path) -> None:
    server.upcoming = [500, 502, 500]
    output = tmp_path / "out.jsonl"
    result = ran("run", str(lines(tmp_path, 3)), *options(server, output, "--in-flight", "1", "--json"))
    assert result.exit_code == 0
    assert summary(result)["retries"] == 3
    assert max(row["attempts"] for row in rows_in(output)) == 4
    again = ran("run", str(lines(tmp_path, 3)), *options(server, tmp_path / "o.jsonl", "--in-flight", "1"))
    assert ", 3 retries." not in again.stdout


def test_run__not_now__is_waited_out_as_long_as_patience_lasts(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.retry_after = False
    server.upcoming = [503, 429, 503]
    output = tmp_path / "out.jsonl"
    one = ("--in-flight", "1", "--retries", "0")
    assert ran("run", str(lines(tmp_path, 3)), *options(server, output, *one)).exit_code == 0
    server.status = 429
    out_of_patience = ran(
        "run", str(lines(tmp_path, 1)), *options(server, tmp_path / "2.jsonl", *one, "--patience", "0.2")
    )
    assert out_of_patience.exit_code == 3
    [letter] = rows_in(tmp_path / "2.jsonl.dead.jsonl")
    assert letter["reason"].startswith("HttpStatusError: 429")


def test_run__post_that_may_have_been_done__is_not_sent_again(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    server.upcoming = [503]
    output = tmp_path / "out.jsonl"
    more = ("--method", "POST", "--send-json", "--in-flight", "1")
    assert ran("run", str(lines(tmp_path, 2)), *options(server, output, *more)).exit_code == 3
    assert server.accepted == 2


def test_run__answer_too_long__is_a_dead_letter(server: SimulatedUpstream, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    assert ran("run", str(lines(tmp_path, 1)), *options(server, output, "--max-body", "5")).exit_code == 3
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert letter["reason"] == "BodyTooLongError: the answer is longer than 5 bytes"


def test_run__lines_that_cannot_be_used__are_dead_letters_with_their_numbers(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(b'{"id": 1}\nnonsense\n{"other": 1}\n{"id": ".."}\n\xff\n{"id": []}\n')
    assert ran("run", str(given), *options(server, output, path="/{id}")).exit_code == 3
    told = {letter["position"]: letter["reason"] for letter in rows_in(tmp_path / "out.jsonl.dead.jsonl")}
    assert told[2].startswith("line 2 is not JSON")
    assert told[3] == "ColumnError: there is no column 'id', only 'other'"
    assert "must not be empty, '.' or '..'" in told[4]
    assert told[5].startswith("line 5 is not UTF-8")
    assert "must be a text or a number" in told[6]
    assert [row["line"] for row in rows_in(output)] == [1]


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("in.csv", ["--url", "http://h/{idd}"], "--url: {0} has no column 'idd', only 'id', 'q'"),
        ("in.csv", ["--key", "who"], "--key: {0} has no column 'who', only 'id', 'q'"),
        ("in.txt", [], "--url: {0} has no column 'id', only 'line'"),
    ],
)
def test_run__column_that_no_line_has__is_refused_before_anything_is_begun(
    server: SimulatedUpstream, tmp_path: Path, name: str, more: list[str], said: str
) -> None:
    given, output = tmp_path / name, tmp_path / "out.jsonl"
    given.write_text("id,q\n1,a\n2,b\n")
    result = ran("run", str(given), *options(server, output, path="/{id}"), *more)
    assert result.exit_code == 2
    assert said.format(given) in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_run__resumed__does_only_what_is_left(server: SimulatedUpstream, tmp_path: Path) -> None:
    given, output = lines(tmp_path), tmp_path / "out.jsonl"
    ran("run", str(given), *options(server, output))
    asked = server.accepted
    done = ran("run", str(given), *options(server, output, "--resume"))
    assert (done.exit_code, server.accepted) == (0, asked)
    assert "20 were done before" in done.stdout
    for more, said in ([], "is there already"), (["--append"], "a run of these files was begun"):
        refused = ran("run", str(given), *options(server, output, *more))
        assert refused.exit_code == 2
        assert said in refused.stderr
    with given.open("a") as file:
        file.write("another\n")
    changed = ran("run", str(given), *options(server, output, "--resume"))
    assert changed.exit_code == 1
    assert "size_bytes was" in changed.stderr


def test_run__resumed_after_dead_letters__still_says_that_there_are_some(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    server.upcoming = [404]
    ran("run", str(given), *options(server, output))
    result = ran("run", str(given), *options(server, output, "--resume", "--json"))
    assert (result.exit_code, summary(result)["dead_before"], summary(result)["dead"]) == (3, 1, 0)


def test_run__output_there_but_no_checkpoint__is_not_written_over(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text("mine\n")
    for more in ([], ["--resume"]):
        assert ran("run", str(lines(tmp_path)), *options(server, output, *more)).exit_code == 2
    result = ran("run", str(lines(tmp_path)), *options(server, output, "--append"))
    assert result.exit_code == 1
    assert "not begun by us" in result.stderr
    assert output.read_text() == "mine\n"


def test_run__key__calls_one_after_another(server: SimulatedUpstream, tmp_path: Path) -> None:
    given, output = tmp_path / "in.csv", tmp_path / "out.jsonl"
    given.write_text("id,k\n" + "".join(f"{number},same\n" for number in range(20)))
    server.delay = 0.002
    assert ran("run", str(given), *options(server, output, "--key", "k", path="/{id}")).exit_code == 0
    assert server.most == 1
    assert [row["line"] for row in rows_in(output)] == list(range(2, 22))


def test_run__settings_file__says_how_the_upstream_is_used(server: SimulatedUpstream, tmp_path: Path) -> None:
    config, output = tmp_path / "comporta.toml", tmp_path / "out.jsonl"
    config.write_text('state = "memory://"\n[upstreams.books]\nlimit = "1000/s"\ndegradation = false\n')
    where = ("--config", str(config), "--upstream", "books")
    assert ran("run", str(lines(tmp_path)), *options(server, output, *where)).exit_code == 0
    unknown = ran(
        "run", str(lines(tmp_path)), *options(server, tmp_path / "2.jsonl", "--config", str(config))
    )
    assert unknown.exit_code == 2
    assert "upstream must be one of 'books'" in unknown.stderr


def test_run__headers__are_sent_and_secrets_come_from_the_environment(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUN_TOKEN", "secret")
    more = ("--header", "X-One: 1", "--header-env", "Authorization=RUN_TOKEN")
    assert ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "o.jsonl", *more)).exit_code == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--config", "/absent/comporta.toml"], "/absent/comporta.toml cannot be read: No such file"),
        (["--header", "nonsense"], "must look like 'Name: value'"),
        (["--header-env", "A=ABSENT_VARIABLE"], "must name a variable that is set"),
        (["--limit", "nonsense"], "limit must look like"),
        (["--upstream", "a b"], "key must be|name must be"),
        (["--state", "ftp://x"], "--state: state must start with one of"),
        (["--output", "x.db", "--table", ""], "table must be a name"),
        (["--output", "x.db", "--table", "sqlite_x"], "table must be a name"),
        (["--state", "http://x"], "not the address of a page"),
        (["--output", "x.pdf"], "must end in one of .jsonl"),
        (["--output", "no/such/x.jsonl"], "--output: must be in a folder that is there, got 'no/such/x"),
        (["--url", "ftp://host/{line}"], "url must begin with http"),
        (["--config", "absent.toml"], "absent.toml"),
    ],
)
def test_run__bad_option__is_a_sentence_and_nothing_is_made(
    server: SimulatedUpstream, tmp_path: Path, more: list[str], said: str
) -> None:
    result = ran("run", str(lines(tmp_path)), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 2
    assert any(part in " ".join(result.stderr.split()) for part in said.split("|"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_run__input_absent__is_a_sentence(server: SimulatedUpstream, tmp_path: Path) -> None:
    result = ran("run", str(tmp_path / "absent.txt"), *options(server, tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert "absent.txt: cannot be read: No such file" in result.stderr


# in a process of its own ------------------------------------------------------------------------------


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
    assert ran("run", "-", *options(server, tmp_path / "2.jsonl", "--resume")).exit_code == 2


@pytest.mark.parametrize("times", [1, 2])
def test_run__interrupted__ends_and_is_resumed(server: SimulatedUpstream, tmp_path: Path, times: int) -> None:
    """Once: what is under way is done first. Twice: it is not."""
    given, output = lines(tmp_path, 300), tmp_path / "out.jsonl"
    server.delay = 0.1 if times == 1 else 30.0
    with subprocess.Popen(command(str(given), *options(server, output)), stdout=subprocess.PIPE) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while server.accepted < 10:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        told = _interrupt(process, times)
    assert process.returncode == 130
    assert told.decode().startswith("Drained" if times == 1 else "Stopped")
    assert "The same command with --resume goes on." in told.decode()
    server.delay = 0.0
    assert ran("run", str(given), *options(server, output, "--resume")).exit_code == 0
    assert sorted(row["line"] for row in rows_in(output)) == list(range(1, 301))


def _interrupt(process: subprocess.Popen[bytes], times: int) -> bytes:
    """Interrupt so often; two that come at once are one, and then one more does it."""
    process.send_signal(signal.SIGINT)
    while times > 1 and process.poll() is None:
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    return process.communicate(timeout=PATIENCE_SECONDS)[0]


def test_run__on_a_terminal__shows_how_far_it_is(server: SimulatedUpstream, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    server.delay = 0.05
    with subprocess.Popen(
        command(str(lines(tmp_path, 100)), *options(server, tmp_path / "out.jsonl")),
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        told = b""
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 65536):
                told += chunk
    os.close(ours)
    assert process.returncode == 0
    assert b"of about 100 done" in told
    assert b"limit 100000/s" in told


# addresses --------------------------------------------------------------------------------------------


def test_address__columns__can_be_nothing_but_values() -> None:
    address = Address("https://host/a/{x}?q={y}&r={{}}")
    assert (address.host, address.columns) == ("host", ["x", "y"])
    assert (
        address.of({"x": "../b?c#d/é", "y": "1&2=3"})
        == "https://host/a/..%2Fb%3Fc%23d%2F%C3%A9?q=1%262%3D3&r={}"
    )
    assert Address("HTTP://host:8080/{line}").host == "host"
    assert Address("http://host:8080/{line}").of("text") == "http://host:8080/text"
    with pytest.raises(ColumnError, match="must be a text or a number to stand in a URL, got None"):
        address.of({"x": None, "y": 1})


@pytest.mark.parametrize(
    "wrong",
    ["", "host/{x}", "https://{host}/x", "https://a{b}.com/", "https://host/{", "https://host/{}",
     "https://host/{x!r}", "https://host/{x:d}", "gopher://host/{x}", "https://[::1/{x}"],
)  # fmt: skip
def test_address__that_is_none__is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="url must"):
        Address(wrong)


def test_run__input_is_a_named_pipe__loses_no_line_and_wants_no_checkpoint(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    pipe, output = tmp_path / "pipe", tmp_path / "out.jsonl"
    os.mkfifo(pipe)
    filling = subprocess.Popen(["sh", "-c", f"printf 'a\\nb\\nc\\n' > {pipe}"])
    try:
        told = summary(ran("run", str(pipe), *options(server, output, "--json")))
    finally:
        filling.kill()
        filling.wait()
    assert (told["written"], told["checkpoint"]) == (3, None)
    assert "cannot be read again" in ran("run", str(pipe), *options(server, output, "--resume")).output


def test_run__results_and_dead_letters_in_one_file__is_refused(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    result = ran("run", str(lines(tmp_path)), *options(server, output, "--dead-letters", str(output)))
    assert result.exit_code == 2
    assert "--dead-letters: must be another file" in result.output


@pytest.mark.parametrize(
    ("option", "given"), [("--header", "X Y: 1"), ("--header", "X: \xe9"), ("--header-env", "=TOKEN_OF_TEST")]
)
def test_run__header_that_cannot_be_sent__is_refused_before_anything_is_called(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, given: str
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "value")
    result = ran("run", str(lines(tmp_path)), *options(server, tmp_path / "out.jsonl", option, given))
    assert (result.exit_code, server.accepted) == (2, 0)
    assert f"Invalid value for {option}" in result.output


def test_run__secret_that_cannot_be_sent__is_shown_nowhere(
    server: SimulatedUpstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_TEST", "hidden\nvalue")
    more = ("--header-env", "Authorization=TOKEN_OF_TEST")
    result = ran("run", str(lines(tmp_path)), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 2
    assert "hidden" not in result.output


def test_address__port_that_is_none__is_refused() -> None:
    with pytest.raises(ValueError, match="a port of 0 to 65535"):
        Address("http://127.0.0.1:99999/{line}")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "db"])
def test_run__appended_from_another_input__writes_nothing_over_and_marks_nothing_falsely(
    server: SimulatedUpstream, tmp_path: Path, ending: str
) -> None:
    output = tmp_path / f"out.{ending}"
    for name in ("a", "b"):
        given = tmp_path / f"{name}.txt"
        given.write_text(f"{name}1\n{name}2\n")
        result = ran("run", str(given), *options(server, output, "--append"))
        assert result.exit_code == 0, result.output
    if ending == "db":
        with sqlite3.connect(output) as connection:
            found = [row[0] for row in connection.execute("SELECT input FROM results")]
        connection.close()
    else:
        found = [text for text in output.read_text().splitlines() if "/a" in text or "/b" in text]
        assert not any('"yes"' in text or "repeated" in text for text in found)
    assert len(found) == 4


@pytest.mark.parametrize("ending", ["jsonl", "csv", "db"])
def test_run__appended_from_the_same_input_again__is_known_again(
    server: SimulatedUpstream, tmp_path: Path, ending: str
) -> None:
    given, output = lines(tmp_path, 2), tmp_path / f"out.{ending}"
    ran("run", str(given), *options(server, output))
    Path(f"{output}.in.txt.checkpoint").unlink()
    assert ran("run", str(given), *options(server, output, "--append")).exit_code == 0
    if ending == "db":
        with sqlite3.connect(output) as connection:
            assert connection.execute("SELECT count(*) FROM results").fetchone() == (2,)
        connection.close()
    else:
        assert (
            sum('"yes"' in text or '"repeated": true' in text for text in output.read_text().splitlines())
            == 2
        )


def test_run__resumed_without_its_output__is_refused_and_says_what_to_do(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given, output = lines(tmp_path, 3), tmp_path / "out.jsonl"
    ran("run", str(given), *options(server, output))
    output.unlink()
    checkpoint = tmp_path / "out.jsonl.in.txt.checkpoint"
    refused = ran("run", str(given), *options(server, output, "--resume"))
    assert refused.exit_code == 2
    assert "out.jsonl is gone, and 3 rows were written to it" in " ".join(refused.stderr.split())
    assert not output.exists()
    checkpoint.write_text("nonsense")
    broken = ran("run", str(given), *options(server, output, "--resume"))
    assert (broken.exit_code, "is no checkpoint" in broken.stderr) == (1, True)
    checkpoint.unlink()
    assert ran("run", str(given), *options(server, output, "--resume")).exit_code == 0
    assert len(rows_in(output)) == 3


def test_run__resumed_with_another_table__names_both_and_makes_none(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given, output = lines(tmp_path, 3), tmp_path / "out.db"
    ran("run", str(given), *options(server, output, "--table", "companies"))
    refused = ran("run", str(given), *options(server, output, "--table", "others", "--resume"))
    assert refused.exit_code == 1
    assert "table was 'companies', is 'others'" in refused.stderr
    with sqlite3.connect(output) as database:
        assert database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall() == [
            ("companies",)
        ]
    assert ran("run", str(given), *options(server, output, "--table", "companies", "--resume")).exit_code == 0


def test_run__resumed_with_another_table_that_nothing_goes_to__goes_on(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given, output = lines(tmp_path, 3), tmp_path / "out.csv"
    ran("run", str(given), *options(server, output, "--table", "companies"))
    assert ran("run", str(given), *options(server, output, "--resume")).exit_code == 0


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


def test_run__answer_that_breaks_off__is_tried_again(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    with Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", WHOLE) as server:
        result = ran("run", str(lines(tmp_path, 1)), *options(server, output, "--json"))
    assert (result.exit_code, summary(result)["retries"], server.asked) == (0, 1, 2)
    [row] = rows_in(output)
    assert (row["body"], row["attempts"]) == ({}, 2)


def test_run__answer_that_drips__is_bounded_and_tried_again(tmp_path: Path) -> None:
    with Raw(b"HTTP/1.1 200 OK\r\n" + DRIPS, WHOLE) as server:
        more = ("--timeout", "0.5", "--json")
        result = ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "out.jsonl", *more))
    assert (result.exit_code, server.asked) == (0, 2)


def test_run__settings_file_without_a_timeout__the_option_bounds_answers(tmp_path: Path) -> None:
    config = tmp_path / "comporta.toml"
    config.write_text('state = "memory://"\n[upstreams.books]\nlimit = "1000/s"\nretry = false\n')
    with Raw(b"HTTP/1.1 200 OK\r\n" + DRIPS) as server:
        more = ("--timeout", "0.2", "--config", str(config), "--upstream", "books")
        result = ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "out.jsonl", *more))
    assert result.exit_code == 3
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert "Timeout" in letter["reason"]


@pytest.mark.parametrize("rest", [DRIPS, b"Content-Length: 8000\r\n\r\n" + b"y" * 8000])
def test_run__refusal_that_drips_or_is_long__is_what_its_status_says(tmp_path: Path, rest: bytes) -> None:
    with Raw(b"HTTP/1.1 404 Not Found\r\n" + rest) as server:
        more = ("--max-body", "10")
        result = ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "out.jsonl", *more))
    assert (result.exit_code, server.asked) == (3, 1)
    [letter] = rows_in(tmp_path / "out.jsonl.dead.jsonl")
    assert letter["reason"].startswith("HttpStatusError: 404")


def test_run__answer_that_is_compressed__is_read_as_what_it_says(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"a": 1}')
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    with Raw(head.encode() + packed) as server:
        assert ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "out.jsonl")).exit_code == 0
    assert rows_in(tmp_path / "out.jsonl")[0]["body"] == {"a": 1}


@pytest.mark.parametrize("said", ["NaN", '{"a": [-Infinity]}', '{"a": 1e999}'])
def test_run__answer_with_numbers_that_json_does_not_have__is_kept_as_text(tmp_path: Path, said: str) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\nConnection: close\r\n\r\n"
    with Raw(head.encode() + said.encode()) as server:
        assert ran("run", str(lines(tmp_path, 1)), *options(server, tmp_path / "out.jsonl")).exit_code == 0
    assert rows_in(tmp_path / "out.jsonl")[0]["body"] == said


def test_run__item_that_cannot_be_sent__counts_no_retries_of_the_one_before(
    server: SimulatedUpstream, tmp_path: Path
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text('{"id": 1}\n{"id": 2, "x": NaN}\n')
    server.upcoming = [500, 500]
    more = ("--method", "PUT", "--send-json", "--in-flight", "1", "--json")
    result = ran("run", str(given), *options(server, tmp_path / "out.jsonl", *more, path="/{id}"))
    assert (result.exit_code, summary(result)["dead"], summary(result)["retries"]) == (3, 1, 2)
