"""``comporta doctor`` on real servers and directories, healthy and broken."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cli.cli_runner import run, run_json, run_process
from tests.support import redis_store

from comporta.cli import doctor
from comporta.cli.doctor_checks import Finding
from comporta.cli.doctor_redis import command_trials
from comporta.stores.failover.worker_registry import REGISTRY_KEY, RecordHeartbeat, Worker
from comporta.stores.memory import MemoryStore
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import FaultProxy, Sentinels, Server

SERVER_CHECKS = [
    *("connect", "version", "role", "eviction", "memory", "clock", "restart", "replicas"),
    *("commands", "keys", "latency", "decisions", "workers"),
]
GENEROUS = "?timeout=5"  # a busy machine must not cause a finding
KEYS = (
    *("~rate_limiter:*", "~rate_limiter_change:*", "~circuit_breaker:*", "~circuit_breaker_change:*"),
    *("~concurrency:*", "~retry_budget:*", "~cache_changes:*", "~comporta_history:*", "~comporta_journal:*"),
    *("~comporta_upstreams:*", "~comporta_turns:*", "~comporta_fleet:*", "~comporta_story:*"),
    *("~rate_limiter_reports:*", "~comporta_rejoin:*", "~comporta_changes", "~comporta_workers"),
)


def findings_by_check(url: str) -> dict[str, Finding]:
    """Return the findings on a state by the name of the check."""
    return {finding["check"]: Finding(**finding) for finding in run_json("doctor", url)}


def problems(url: str) -> dict[str, str]:
    """Return the warnings and failures as ``status: detail``."""
    findings = findings_by_check(url).values()
    return {check: f"{status}: {detail}" for check, status, detail in findings if status != "ok"}


@contextmanager
def user(server: Server, *rights: str) -> Iterator[str]:
    """Create a user on a server; yield the URL with its login."""
    server.command("ACL", "SETUSER", "someone", "reset", "on", ">hunter2", *rights)
    try:
        yield server.url.replace("redis://", "redis://someone:hunter2@") + GENEROUS
    finally:
        server.command("ACL", "DELUSER", "someone")


def test_doctor__default_server__passes_all_checks_and_leaves_no_key(server: Server) -> None:
    server.command("FLUSHALL")
    ran = run_process("doctor", server.url + GENEROUS)
    assert (ran.returncode, ran.stderr) == (0, "")
    checks = re.findall(r"^ (\w+) +ok ", ran.stdout, re.MULTILINE)
    assert checks == SERVER_CHECKS
    assert ran.stdout.endswith("All checks passed.\n")
    assert server.command("KEYS", "*") == []


def test_doctor__json__prints_the_same_findings_as_a_list(server: Server) -> None:
    found = findings_by_check(server.url + GENEROUS)
    assert list(found) == SERVER_CHECKS
    assert {finding.status for finding in found.values()} == {"ok"}


def test_doctor__live_workers__are_counted(server: Server) -> None:
    with redis_store(server) as store:
        store.apply(RecordHeartbeat(Worker("h", 1, 0, 1)))
        assert findings_by_check(server.url + GENEROUS)["workers"].detail.startswith("1 alive")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-random"])
def test_doctor__live_limits_may_be_evicted__warns_and_exits_0(policy: str, own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
    ran = run("doctor", own_server.url + GENEROUS)
    assert ran.exit_code == 0, ran.output
    assert f"{policy}: the server may evict live limits" in ran.stdout
    assert ran.stdout.endswith("Warnings: 1, failures: 0.\n")


@pytest.mark.parametrize("policy", ["noeviction", "volatile-ttl"])
def test_doctor__policy_keeps_live_limits__is_ok(policy: str, own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
    assert problems(own_server.url + GENEROUS) == {}


def test_doctor__memory_full__warns_and_names_the_failing_command(own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    found = problems(own_server.url + GENEROUS)
    assert found.keys() == {"memory", "commands"}
    assert found["memory"].endswith("raise maxmemory")
    assert found["commands"].startswith("fail: SET: ")


def test_doctor__append_only_file_and_a_replica__are_reported(own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "appendonly", "yes")
    replica = own_server.replica()
    try:
        found = findings_by_check(own_server.url + GENEROUS)
    finally:
        replica.close()
    assert found["restart"].detail.startswith("append-only file")
    assert found["replicas"].detail.startswith("1: a failover costs at most one extra burst")


@pytest.mark.parametrize("command", ["hset", "eval", "zcard", "time", "scan"])
def test_doctor__command_not_allowed__is_named(command: str, server: Server) -> None:
    with user(server, "~*", "+@all", f"-{command}") as url:
        assert run("doctor", url).exit_code == 1
        found = problems(url)
    assert found["commands"] == f"fail: this user may not run required commands: {command.upper()}"


def test_doctor__key_not_allowed__is_named(server: Server) -> None:
    with user(server, "~rate_limiter:*", "+@all") as url:
        found = problems(url)
    assert found == {
        "keys": "fail: this user may not use required keys: "
        "rate_limiter_change:*, circuit_breaker:*, circuit_breaker_change:*, concurrency:*, retry_budget:*, "
        "cache_changes:*, comporta_history:*, comporta_journal:*, comporta_upstreams:*, comporta_turns:*, "
        "comporta_fleet:*, comporta_story:*, rate_limiter_reports:*, comporta_rejoin:*, comporta_workers, "
        "comporta_changes"
    }


def test_doctor__key_may_only_be_read__is_named(valkey: Server) -> None:
    with user(valkey, *KEYS[:-1], "%R~comporta_workers", "+@all") as url:
        found = problems(url)
    assert found == {"keys": "fail: this user may not use required keys: comporta_workers"}


def test_doctor__user_with_minimal_rights__warns_about_unknown_values(server: Server) -> None:
    commands = {str(words[0]).lower() for words in command_trials("x")}
    with user(server, *KEYS, *(f"+{command}" for command in sorted(commands))) as url:
        found = findings_by_check(url)
    assert [check for check, finding in found.items() if finding.status != "ok"] == ["eviction", "memory"]
    assert found["eviction"].detail.startswith("unknown")
    assert found["replicas"].detail == "unknown"
    assert found["decisions"].status == "ok"


def test_doctor__info_forbidden__reads_the_configuration_instead(server: Server) -> None:
    with user(server, "~*", "+@all", "-info") as url:
        assert problems(url) == {}


def test_doctor__foreign_value_at_the_registry_key__is_named(own_server: Server) -> None:
    own_server.command("SET", REGISTRY_KEY, "x")
    assert problems(own_server.url + GENEROUS)["keys"].startswith(
        "fail: comporta_workers holds a foreign value"
    )


def test_doctor__replica__fails_and_recommends_the_primary(own_server: Server) -> None:
    replica = own_server.replica()
    try:
        ran = run("doctor", replica.url + GENEROUS)
    finally:
        replica.close()
    assert ran.exit_code == 1
    assert "use the URL of the primary" in ran.stdout
    assert ran.stdout.endswith("Warnings: 0, failures: 1.\n")


def test_doctor__node_of_a_cluster__recommends_the_cluster_scheme(server: Server) -> None:
    with Server(server.program, "--cluster-enabled", "yes") as node:
        assert "redis+cluster://" in problems(node.url + GENEROUS)["role"]


@pytest.mark.parametrize("login", [":hunter2@", "hunter2:hunter2@", ""])
def test_doctor__wrong_password__fails_and_shows_no_secret(login: str) -> None:
    with Server(None, "--requirepass", "right") as server:
        url = server.url.replace("redis://", f"redis://{login}")
        ran = run_process("doctor", url)
        found = problems(url)
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert f"redis://127.0.0.1:{server.port}/0 rejects the login" in line
    assert found["connect"] == f"fail: {line.removeprefix('Error: ')}"
    assert "hunter2" not in line
    assert "right" not in line


def test_doctor__no_server__fails_with_one_sentence() -> None:
    ran = run_process("doctor", "redis://:hunter2@127.0.0.1:1/0")
    assert (ran.returncode, ran.stdout) == (1, "")
    [line] = ran.stderr.splitlines()
    assert line.startswith("Error: redis://127.0.0.1:1/0 is unreachable: ")
    assert line.endswith("Check that the server is running and that the URL is right.")


def test_doctor__not_a_redis_server__fails_with_one_sentence(valkey: Server) -> None:
    with FaultProxy.to(valkey) as proxy:
        proxy.garble_replies(matching="HELLO")
        ran = run("doctor", proxy.url)
    assert ran.exit_code == 1
    [line] = ran.stderr.splitlines()
    assert "is unreachable" in line


def test_doctor__connection_lost_during_the_checks__fails(valkey: Server) -> None:
    with FaultProxy.to(valkey) as proxy:
        proxy.truncate_replies(matching="TIME")
        found = findings_by_check(proxy.url + GENEROUS)
    assert list(found)[-2:] == ["memory", "connection"]
    assert found["connection"].status == "fail"
    assert found["connection"].detail.startswith("lost during the checks: ")


@pytest.mark.parametrize(("rights", "status"), [("+@all", "ok"), ("-info", "warn")])
def test_doctor__server_without_hello__reads_info_instead(rights: str, status: str) -> None:
    with Server(None, "--rename-command", "HELLO", "") as server, user(server, "~*", "+@all", rights) as url:
        found = findings_by_check(url)
    assert found["version"].status == status
    assert found["role"].status == "ok"


def test_doctor__directory_in_use__passes_all_checks(shared_name: str) -> None:
    store = SharedStore(shared_name, memory=8)
    try:
        store.apply(RecordHeartbeat(Worker.new()))
        before = store.table.usage().keys
        found = findings_by_check(f"shared://{shared_name}?lock_timeout=5")
        assert list(found) == ["directory", "processes", "usage", "latency", "decisions", "workers"]
        assert {finding.status for finding in found.values()} == {"ok"}
        assert found["directory"].detail == f"{directory_path(shared_name)}, mode 0700"
        assert found["processes"].detail == "1 use the table"
        assert found["workers"].detail.startswith("1 alive")
        assert store.table.usage().keys == before
    finally:
        store.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_doctor__process_uses_a_removed_table__fails(shared_name: str, *, is_replaced: bool) -> None:
    store = SharedStore(shared_name, memory=8)
    try:
        shutil.rmtree(store.path)
        if is_replaced:
            child = f"from comporta.stores.shared.store import SharedStore; SharedStore({shared_name!r})"
            subprocess.run([sys.executable, "-c", child], check=True)
        found = problems(f"shared://{shared_name}")
        assert f"1 of 1 processes use a table that was removed ({os.getpid()})" in found["processes"]
        store.verify()
        assert findings_by_check(f"shared://{shared_name}")["processes"].status == "ok"
    finally:
        store.close()


def test_doctor__truncated_table__fails(shared_name: str) -> None:
    SharedStore(shared_name, memory=8).close()
    os.truncate(Path(directory_path(shared_name)) / "table", 5000)
    found = problems(f"shared://{shared_name}")
    assert found["table"].startswith(f"fail: {directory_path(shared_name)}/table has 5000 bytes, ")


def test_doctor__missing_directory__is_reported_and_not_created(shared_name: str) -> None:
    ran = run_process("doctor", f"shared://{shared_name}")
    assert ran.returncode == 0
    assert "does not exist yet; the first worker creates it" in ran.stdout
    assert "the table grows to 256 MB" in ran.stdout
    assert not Path(directory_path(shared_name)).exists()


def test_doctor__directory_open_to_others__fails(shared_name: str) -> None:
    Path(directory_path(shared_name)).mkdir(mode=0o755)
    found = problems(f"shared://{shared_name}")
    assert found["directory"].endswith("has mode 0755, so other users may change it: run chmod 700")


def test_doctor__file_instead_of_the_directory__fails(shared_name: str) -> None:
    path = Path(directory_path(shared_name))
    path.touch()
    try:
        assert problems(f"shared://{shared_name}")["directory"].endswith("is not a directory: remove it")
    finally:
        path.unlink()


def test_doctor__directory_without_a_table__fails(shared_name: str) -> None:
    Path(directory_path(shared_name)).mkdir(mode=0o700)
    ran = run_process("doctor", f"shared://{shared_name}")
    assert ran.returncode == 1
    assert "remove the folder" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("number", [3, 15])
def test_doctor__one_lock_held_too_long__fails(number: int, shared_name: str) -> None:
    SharedStore(shared_name).close()
    lock = os.open(Path(directory_path(shared_name)) / f"lock.{number:02}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = problems(f"shared://{shared_name}?lock_timeout=0.01")
    finally:
        os.close(lock)
    assert "its holder is stopped" in found["latency"]


def test_doctor__all_locks_held_too_long__fails(shared_name: str) -> None:
    SharedStore(shared_name).close()
    with ExitStack() as held:
        for lock in Path(directory_path(shared_name)).glob("lock.*"):
            fcntl.flock(held.enter_context(lock.open("r+b")), fcntl.LOCK_EX)
        found = problems(f"shared://{shared_name}?lock_timeout=0.01")
    assert "its holder is stopped" in found["latency"]


def test_doctor__wrong_option_of_an_existing_directory__is_a_usage_error(shared_name: str) -> None:
    SharedStore(shared_name, memory=8).close()
    ran = run("doctor", f"shared://{shared_name}?lock_timeout=x")
    assert ran.exit_code == 2
    assert "lock_timeout must be a number, got 'x'" in ran.stderr


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
def test_doctor__memory__has_nothing_to_check(url: str) -> None:
    ran = run("doctor", url)
    assert ran.exit_code == 0
    assert "there is nothing to check" in ran.stdout


def test_doctor__unknown_engine__checks_decisions_and_workers() -> None:
    found = list(doctor.check_engine("other", MemoryStore()))
    assert [(finding.check, finding.status) for finding in found] == [
        ("engine", "warn"),
        ("decisions", "ok"),
        ("workers", "ok"),
    ]


def test_doctor__sentinels__checks_the_primary_and_reports_when_there_is_none(server: Server) -> None:
    with Sentinels(server, 1, 1) as sentinels:
        findings = run_json("doctor", "--json", sentinels.url)
        assert {finding["status"] for finding in findings} == {"ok"}
        assert str(server.port) in findings[0]["detail"]
        assert run("workers", sentinels.url).exit_code == 0
    result = run("doctor", sentinels.url)
    assert result.exit_code == 1
    assert "no sentinel led to a primary" in result.output
