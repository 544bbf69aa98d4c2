"""``comporta workers`` lists the live workers without becoming one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.cli_runner import run, run_json, run_process
from tests.support import assert_within, redis_store, wait_until

from comporta.stores.failover.worker_registry import ListWorkers, RecordHeartbeat, Worker
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import Server

WORKER_PROGRAM = """
import sys
from comporta import TokenBucketLimiter
TokenBucketLimiter("10/s", sys.argv[1], "w").sync.acquire()
print("ready", flush=True)
sys.stdin.read()
"""
UNREACHABLE_URL = "redis://127.0.0.1:1/0"


def test_workers__process_uses_a_server__is_listed_and_the_command_is_not(server: Server) -> None:
    server.command("FLUSHALL")
    command = [sys.executable, "-c", WORKER_PROGRAM, server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        wait_until(lambda: server.command("ZCARD", "comporta_workers"))
        ran = run_process("workers", server.url, "--json")
        process.communicate()
    assert ran.returncode == 0, ran.stderr
    [worker] = json.loads(ran.stdout)
    assert worker.keys() == {"host", "pid", "started", "last_heartbeat_ms"}
    assert worker["pid"] == process.pid
    assert worker["host"] == os.uname().nodename[:64]
    assert 0 <= time.time() - worker["started"] < 60
    assert_within(worker["last_heartbeat_ms"] / 1000, 3, "a heartbeat")


def test_workers__on_a_server__are_a_table_sorted_by_host_and_pid(server: Server) -> None:
    now = int(time.time())
    with redis_store(server) as store:
        for worker in (Worker("[b]", 7, now - 7300, 1), Worker("a", 41, now, 2), Worker("a", 5, now, 3)):
            store.apply(RecordHeartbeat(worker))
        ran = run("workers", server.url)
        assert len(store.apply(ListWorkers())) == 3
    assert ran.exit_code == 0
    rows = [line.split() for line in ran.stdout.splitlines() if "ms ago" in line]
    assert [row[:2] for row in rows] == [["[b]", "7"], ["a", "5"], ["a", "41"]]
    assert rows[0][2:5] == ["2", "h", "ago"]


def test_workers__shared_state__are_listed(shared_name: str) -> None:
    store = SharedStore(shared_name, memory=8)
    try:
        store.apply(RecordHeartbeat(Worker.new()))
        assert [row["pid"] for row in run_json("workers", f"shared://{shared_name}")] == [os.getpid()]
    finally:
        store.close()


def test_workers__unused_server__reports_no_workers(server: Server) -> None:
    server.command("FLUSHALL")
    assert run("workers", server.url).stdout == "No live workers.\n"
    assert run_json("workers", server.url) == []
    assert server.command("DBSIZE") == 0


def test_workers__unused_shared_name__reports_no_workers_and_creates_nothing(shared_name: str) -> None:
    ran = run("workers", f"shared://{shared_name}")
    assert ran.exit_code == 0
    assert ran.stdout == f"No live workers: no process on this machine uses shared://{shared_name}.\n"
    assert run_json("workers", f"shared://{shared_name}") == []
    assert not Path(directory_path(shared_name)).exists()


def test_workers__memory__reports_that_processes_do_not_share_it() -> None:
    assert run("workers", "memory://").stdout.startswith("No live workers: processes do not share memory://")


@pytest.mark.parametrize("variable", ["COMPORTA_STATE", "REDIS_URL"])
def test_workers__no_argument__uses_the_state_of_the_environment(
    variable: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, server.url)
    with redis_store(server) as store:
        store.apply(RecordHeartbeat(Worker("h", 1, 0, 1)))
        assert [row["host"] for row in run_json("workers")] == ["h"]


def test_workers__no_state_in_the_environment__uses_the_shared_state_of_the_app(
    shared_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_APP", shared_name)
    assert f"shared://{shared_name}" in run("workers").stdout


def test_workers__unreachable__fails_with_one_sentence_that_recommends_doctor() -> None:
    ran = run_process("workers", UNREACHABLE_URL.replace("//", "//:hunter2@"))
    assert ran.returncode == 1
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"Error: {UNREACHABLE_URL} cannot be")
    assert line.endswith("To diagnose it, run `comporta doctor STATE`.")
    assert "hunter2" not in line
    assert (
        f"To diagnose it, run `comporta doctor {UNREACHABLE_URL}`." in run("workers", UNREACHABLE_URL).stderr
    )


def test_workers__url_of_a_web_page__explains_what_a_state_is() -> None:
    ran = run("workers", "http://127.0.0.1:8000/")
    assert ran.exit_code == 2
    assert "such as redis://host:6379/0 or shared://my-app, not of a web page" in ran.stderr


def test_workers__directory_open_to_others__fails_with_one_sentence(shared_name: str) -> None:
    Path(directory_path(shared_name)).mkdir(mode=0o755)
    ran = run_process("workers", f"shared://{shared_name}")
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert "has mode 0755" in line


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://x", "not of a web page"),
        ("nonsense", "state must start with one of"),
        ("shared://a/b", "name must be 1 to 64 of"),
        ("shared://a?x=1", "shared:// has the options memory and lock_timeout, got 'x'"),
        ("shared://a?memory=x", "memory must be a whole number of MB, got 'x'"),
        ("shared://a?memory=0", "memory must be 4 to"),
        ("redis://h?timeout=x", "timeout must be a number, got 'x'"),
        ("redis://h?hunter=1", "the URL has the option 'hunter', which comporta and redis-py do not know"),
        ("redis://:hunter2/x@h:1", "cannot be read"),
        ("redis://:1/hunter2@h:1", "cannot be read"),
        ("redis://:a@b?hunter2@h:1", "cannot be read"),
        ("redis://user:hunter2", "cannot be read"),
        ("redis://[h", "cannot be read"),
        ("redis+other://h:1,i:2/x", "state must start with one of"),
    ],
)
@pytest.mark.parametrize("command", ["workers", "doctor"])
def test_command__invalid_url__is_a_usage_error_without_secrets(command: str, url: str, message: str) -> None:
    ran = run(command, url)
    assert ran.exit_code == 2
    assert message in ran.stderr
    assert "hunter2" not in ran.output
