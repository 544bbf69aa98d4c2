"""``comporta workers``: who is there, without being there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.running import listed, run, run_for_real
from tests.support import hold_to, redis_store

from comporta.stores.folder import path_of
from comporta.stores.shared import SharedStore
from comporta.stores.workers import Beat, Roll, Worker
from comporta.testing import Server

USES_A_STATE = """
import sys
from comporta import TokenBucketLimiter
TokenBucketLimiter("10/s", sys.argv[1], "w").sync.acquire()
print("here", flush=True)
sys.stdin.read()
"""
NOBODY = "redis://127.0.0.1:1/0"


def test_workers__a_process_uses_a_server__is_listed_and_the_command_is_not(server: Server) -> None:
    server.command("FLUSHALL")
    command = [sys.executable, "-c", USES_A_STATE, server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        _wait_for(server)
        ran = run_for_real("workers", server.url, "--json")
        process.communicate()
    assert ran.returncode == 0, ran.stderr
    [worker] = json.loads(ran.stdout)
    assert worker.keys() == {"host", "pid", "started", "last_sign_ms"}
    assert worker["pid"] == process.pid
    assert worker["host"] == os.uname().nodename[:64]
    assert 0 <= time.time() - worker["started"] < 60
    hold_to(worker["last_sign_ms"] / 1000, 3, "a sign of life")


def _wait_for(server: Server) -> None:
    deadline = time.monotonic() + 60
    while not server.command("ZCARD", "comporta_workers"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_workers__on_a_server__are_a_table_by_host_and_pid(server: Server) -> None:
    now = int(time.time())
    with redis_store(server) as store:
        for worker in (Worker("[b]", 7, now - 7300, 1), Worker("a", 41, now, 2), Worker("a", 5, now, 3)):
            store.apply(Beat(worker))
        ran = run("workers", server.url)
        assert len(store.apply(Roll())) == 3
    assert ran.exit_code == 0
    rows = [line.split() for line in ran.stdout.splitlines() if "ms ago" in line]
    assert [row[:2] for row in rows] == [["[b]", "7"], ["a", "5"], ["a", "41"]]
    assert rows[0][2:5] == ["2", "h", "ago"]


def test_workers__of_a_folder__are_listed(shared_name: str) -> None:
    store = SharedStore(shared_name, keys=128)
    try:
        store.apply(Beat(Worker.here()))
        assert [row["pid"] for row in listed("workers", f"shared://{shared_name}")] == [os.getpid()]
    finally:
        store.close()


def test_workers__nobody_uses_the_server__says_so(server: Server) -> None:
    server.command("FLUSHALL")
    assert run("workers", server.url).stdout == "No workers.\n"
    assert listed("workers", server.url) == []
    assert server.command("DBSIZE") == 0


def test_workers__nobody_uses_the_name__says_so_and_makes_nothing(shared_name: str) -> None:
    ran = run("workers", f"shared://{shared_name}")
    assert ran.exit_code == 0
    assert ran.stdout == f"No workers: nobody on this machine uses shared://{shared_name}.\n"
    assert listed("workers", f"shared://{shared_name}") == []
    assert not Path(path_of(shared_name)).exists()


def test_workers__memory__are_not_shared_and_so_none() -> None:
    assert run("workers", "memory://").stdout.startswith("No workers: memory:// is not shared")


@pytest.mark.parametrize("variable", ["COMPORTA_STATE", "REDIS_URL"])
def test_workers__no_state_given__is_what_the_environment_says(
    variable: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, server.url)
    with redis_store(server) as store:
        store.apply(Beat(Worker("h", 1, 0, 1)))
        assert [row["host"] for row in listed("workers")] == ["h"]


def test_workers__environment_says_nothing__is_the_folder_of_the_app(
    shared_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_APP", shared_name)
    assert f"shared://{shared_name}" in run("workers").stdout


def test_workers__unreachable__is_one_sentence_that_says_what_next() -> None:
    ran = run_for_real("workers", NOBODY.replace("//", "//:hunter2@"))
    assert ran.returncode == 1
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"Error: {NOBODY} cannot be")
    assert line.endswith("`comporta doctor STATE` tells what to mend.")
    assert "hunter2" not in line
    assert f"`comporta doctor {NOBODY}` tells what to mend." in run("workers", NOBODY).stderr


def test_workers__address_of_a_page__says_what_a_state_is() -> None:
    ran = run("workers", "http://127.0.0.1:8000/")
    assert ran.exit_code == 2
    assert "such as redis://host:6379/0 or shared://my-app, not the address of a page" in ran.stderr


def test_workers__folder_open_to_others__is_one_sentence(shared_name: str) -> None:
    Path(path_of(shared_name)).mkdir(mode=0o755)
    ran = run_for_real("workers", f"shared://{shared_name}")
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert "has mode 0755" in line


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://x", "not the address of a page"),
        ("nonsense", "state must start with one of"),
        ("shared://a/b", "name must be 1 to 64 of"),
        ("shared://a?x=1", "shared:// takes keys and lock_timeout, got 'x'"),
        ("shared://a?keys=x", "keys must be a number, got 'x'"),
        ("shared://a?keys=0", "keys must be 1 to"),
        ("redis://h?timeout=x", "timeout must be a number, got 'x'"),
        ("redis://h?hunter=1", "neither comporta nor redis-py knows the option 'hunter'"),
        ("redis://:hunter2/x@h:1", "cannot be read"),
        ("redis://:1/hunter2@h:1", "cannot be read"),
        ("redis://:a@b?hunter2@h:1", "cannot be read"),
        ("redis://user:hunter2", "cannot be read"),
        ("redis://[h", "cannot be read"),
        ("redis+other://h:1,i:2/x", "state must start with one of"),
    ],
)
@pytest.mark.parametrize("command", ["workers", "doctor"])
def test_command__bad_url__is_a_usage_error_without_secrets(command: str, url: str, said: str) -> None:
    ran = run(command, url)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert "hunter2" not in ran.output
