"""``comporta doctor``: on real servers and folders, well and unwell."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.cli.running import listed, run, run_for_real
from tests.support import redis_store

from comporta.cli import doctor
from comporta.cli.checks import Finding
from comporta.cli.server_checks import trial
from comporta.cli.states import Opened
from comporta.stores.folder import path_of
from comporta.stores.memory import MemoryStore
from comporta.stores.shared import SharedStore
from comporta.stores.workers import WORKERS, Beat, Worker
from comporta.testing import FaultProxy, Sentinels, Server

ON_A_SERVER = [
    *("connect", "version", "role", "eviction", "memory", "clock", "restart", "replicas"),
    *("commands", "keys", "latency", "decisions", "workers"),
]
CALM = "?timeout=5"  # so that a busy machine is no finding
KEYS = (
    *("~rate_limiter:*", "~rate_limiter_change:*", "~circuit_breaker:*", "~circuit_breaker_change:*"),
    *("~concurrency:*", "~retry_budget:*", "~cache_changes:*", "~comporta_history:*", "~comporta_journal:*"),
    *("~comporta_upstreams:*", "~comporta_turns:*", "~comporta_fleet:*", "~comporta_story:*"),
    *("~comporta_workers", "~comporta_return"),
)


def examined(url: str) -> dict[str, Finding]:
    """Return the findings on a state by what was checked."""
    return {found["check"]: Finding(**found) for found in listed("doctor", url)}


def unwell(url: str) -> dict[str, str]:
    """Return what is to be minded or mended, as ``verdict: detail``."""
    found = examined(url).values()
    return {check: f"{verdict}: {detail}" for check, verdict, detail in found if verdict != "good"}


@contextmanager
def user(server: Server, *rights: str) -> Iterator[str]:
    """Make a user on a server; gives the URL by which it comes in."""
    server.command("ACL", "SETUSER", "someone", "reset", "on", ">hunter2", *rights)
    try:
        yield server.url.replace("redis://", "redis://someone:hunter2@") + CALM
    finally:
        server.command("ACL", "DELUSER", "someone")


def test_doctor__default_server__is_all_well_and_left_as_it_was(server: Server) -> None:
    server.command("FLUSHALL")
    ran = run_for_real("doctor", server.url + CALM)
    assert (ran.returncode, ran.stderr) == (0, "")
    checks = re.findall(r"^ (\w+) +good ", ran.stdout, re.MULTILINE)
    assert checks == ON_A_SERVER
    assert ran.stdout.endswith("All well.\n")
    assert server.command("KEYS", "*") == []


def test_doctor__for_scripts__prints_the_same_as_a_list(server: Server) -> None:
    found = examined(server.url + CALM)
    assert list(found) == ON_A_SERVER
    assert {finding.verdict for finding in found.values()} == {"good"}


def test_doctor__workers_there__counts_them(server: Server) -> None:
    with redis_store(server) as store:
        store.apply(Beat(Worker("h", 1, 0, 1)))
        assert examined(server.url + CALM)["workers"].detail.startswith("1 alive")


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-random"])
def test_doctor__live_limits_may_be_evicted__warns_and_exits_0(policy: str, own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
    ran = run("doctor", own_server.url + CALM)
    assert ran.exit_code == 0
    assert f"{policy}: live limits may be evicted" in ran.stdout
    assert ran.stdout.endswith("1 to mind, 0 to mend.\n")


@pytest.mark.parametrize("policy", ["noeviction", "volatile-ttl"])
def test_doctor__live_limits_are_kept__is_good(policy: str, own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", policy)
    assert unwell(own_server.url + CALM) == {}


def test_doctor__memory_full__warns_and_names_what_fails(own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "maxmemory", 1)
    found = unwell(own_server.url + CALM)
    assert found.keys() == {"memory", "commands"}
    assert found["memory"].endswith("raise maxmemory")
    assert found["commands"].startswith("mend: SET: ")


def test_doctor__append_only_file_and_a_replica__are_told(own_server: Server) -> None:
    own_server.command("CONFIG", "SET", "appendonly", "yes")
    replica = own_server.replica()
    try:
        found = examined(own_server.url + CALM)
    finally:
        replica.close()
    assert found["restart"].detail.startswith("append-only file")
    assert found["replicas"].detail.startswith("1: a failover costs one extra burst")


@pytest.mark.parametrize("command", ["hset", "eval", "zcard", "time", "scan"])
def test_doctor__command_not_allowed__is_named(command: str, server: Server) -> None:
    with user(server, "~*", "+@all", f"-{command}") as url:
        assert run("doctor", url).exit_code == 1
        found = unwell(url)
    assert found["commands"] == f"mend: not allowed to this user, needed: {command.upper()}"


def test_doctor__key_not_allowed__is_named(server: Server) -> None:
    with user(server, "~rate_limiter:*", "+@all") as url:
        found = unwell(url)
    assert found == {
        "keys": "mend: not allowed to this user, needed: "
        "rate_limiter_change:*, circuit_breaker:*, circuit_breaker_change:*, concurrency:*, retry_budget:*, "
        "cache_changes:*, comporta_history:*, comporta_journal:*, comporta_upstreams:*, comporta_turns:*, "
        "comporta_fleet:*, comporta_story:*, comporta_workers, comporta_return"
    }


def test_doctor__key_may_only_be_read__is_named(valkey: Server) -> None:
    with user(valkey, *KEYS[:-2], "%R~comporta_workers", "~comporta_return", "+@all") as url:
        found = unwell(url)
    assert found == {"keys": "mend: not allowed to this user, needed: comporta_workers"}


def test_doctor__user_with_no_more_than_needed__is_told_what_cannot_be_known(server: Server) -> None:
    commands = {str(words[0]).lower() for words in trial("x")}
    with user(server, *KEYS, *(f"+{command}" for command in sorted(commands))) as url:
        found = examined(url)
    assert [check for check, finding in found.items() if finding.verdict != "good"] == ["eviction", "memory"]
    assert found["eviction"].detail.startswith("unknown")
    assert found["replicas"].detail == "unknown"
    assert found["decisions"].verdict == "good"


def test_doctor__info_forbidden__asks_the_configuration(server: Server) -> None:
    with user(server, "~*", "+@all", "-info") as url:
        assert unwell(url) == {}


def test_doctor__something_else_in_the_place_of_the_workers__is_named(own_server: Server) -> None:
    own_server.command("SET", WORKERS, "x")
    assert unwell(own_server.url + CALM)["keys"].startswith("mend: comporta_workers holds something else")


def test_doctor__replica__says_where_to_point(own_server: Server) -> None:
    replica = own_server.replica()
    try:
        ran = run("doctor", replica.url + CALM)
    finally:
        replica.close()
    assert ran.exit_code == 1
    assert "point the URL to the primary" in ran.stdout
    assert ran.stdout.endswith("0 to mind, 1 to mend.\n")


def test_doctor__node_of_a_cluster__says_so(server: Server) -> None:
    with Server(server.program, "--cluster-enabled", "yes") as node:
        assert "redis+cluster://" in unwell(node.url + CALM)["role"]


@pytest.mark.parametrize("given", [":hunter2@", "hunter2:hunter2@", ""])
def test_doctor__wrong_password__mends_and_shows_no_secret(given: str) -> None:
    with Server(None, "--requirepass", "right") as server:
        url = server.url.replace("redis://", f"redis://{given}")
        ran = run_for_real("doctor", url)
        found = unwell(url)
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    assert f"redis://127.0.0.1:{server.port}/0 does not let us in" in line
    assert found["connect"] == f"mend: {line.removeprefix('Error: ')}"
    assert "hunter2" not in line
    assert "right" not in line


def test_doctor__nobody_listens__is_one_sentence() -> None:
    ran = run_for_real("doctor", "redis://:hunter2@127.0.0.1:1/0")
    assert (ran.returncode, ran.stdout) == (1, "")
    [line] = ran.stderr.splitlines()
    assert line.startswith("Error: redis://127.0.0.1:1/0 cannot be reached: ")
    assert line.endswith("Is it running? Is the URL right?")


def test_doctor__something_else_answers__is_one_sentence(valkey: Server) -> None:
    with FaultProxy.to(valkey) as proxy:
        proxy.garble_replies(to="HELLO")
        ran = run("doctor", proxy.url)
    assert ran.exit_code == 1
    [line] = ran.stderr.splitlines()
    assert "cannot be reached" in line


def test_doctor__connection_lost_on_the_way__mends(valkey: Server) -> None:
    with FaultProxy.to(valkey) as proxy:
        proxy.cut_replies(to="TIME")
        found = examined(proxy.url + CALM)
    assert list(found)[-2:] == ["memory", "connection"]
    assert found["connection"].verdict == "mend"
    assert found["connection"].detail.startswith("lost while checking: ")


@pytest.mark.parametrize(("rights", "verdict"), [("+@all", "good"), ("-info", "mind")])
def test_doctor__server_that_does_not_greet__is_asked_otherwise(rights: str, verdict: str) -> None:
    with Server(None, "--rename-command", "HELLO", "") as server, user(server, "~*", "+@all", rights) as url:
        found = examined(url)
    assert found["version"].verdict == verdict
    assert found["role"].verdict == "good"


def test_doctor__folder_in_use__is_all_well(shared_name: str) -> None:
    store = SharedStore(shared_name, keys=128)
    try:
        store.apply(Beat(Worker.here()))
        before = store.table.used()
        found = examined(f"shared://{shared_name}?lock_timeout=5")
        assert list(found) == ["folder", "use", "latency", "decisions", "workers"]
        assert {finding.verdict for finding in found.values()} == {"good"}
        assert found["folder"].detail == f"{path_of(shared_name)}, mode 0700"
        assert found["workers"].detail.startswith("1 alive")
        assert store.table.used() == before
    finally:
        store.close()


def test_doctor__folder_not_there__says_so_and_makes_none(shared_name: str) -> None:
    ran = run_for_real("doctor", f"shared://{shared_name}")
    assert ran.returncode == 0
    assert "is not there: nobody uses it yet" in ran.stdout
    assert "MB needed for 16,384 keys" in ran.stdout
    assert not Path(path_of(shared_name)).exists()


def test_doctor__folder_open_to_others__mends(shared_name: str) -> None:
    Path(path_of(shared_name)).mkdir(mode=0o755)
    found = unwell(f"shared://{shared_name}")
    assert found["folder"].endswith("has mode 0755, others could change it: chmod 700")


def test_doctor__file_in_the_place_of_the_folder__mends(shared_name: str) -> None:
    path = Path(path_of(shared_name))
    path.touch()
    try:
        assert unwell(f"shared://{shared_name}")["folder"].endswith("is no folder: remove it")
    finally:
        path.unlink()


def test_doctor__folder_without_a_table__mends(shared_name: str) -> None:
    Path(path_of(shared_name)).mkdir(mode=0o700)
    ran = run_for_real("doctor", f"shared://{shared_name}")
    assert ran.returncode == 1
    assert "remove the folder" in ran.stdout
    assert ran.stderr == ""


@pytest.mark.parametrize("number", [3, 15])
def test_doctor__any_lock_of_a_folder_held_for_long__mends(number: int, shared_name: str) -> None:
    SharedStore(shared_name).close()
    lock = os.open(Path(path_of(shared_name)) / f"lock.{number:02}", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = unwell(f"shared://{shared_name}?lock_timeout=0.01")
    finally:
        os.close(lock)
    assert "its holder is stopped" in found["latency"]


def test_doctor__all_locks_of_a_folder_held_for_long__mends(shared_name: str) -> None:
    SharedStore(shared_name).close()
    with ExitStack() as held:
        for lock in Path(path_of(shared_name)).glob("lock.*"):
            fcntl.flock(held.enter_context(lock.open("r+b")), fcntl.LOCK_EX)
        found = unwell(f"shared://{shared_name}?lock_timeout=0.01")
    assert "its holder is stopped" in found["latency"]


def test_doctor__bad_option_of_a_folder_that_is_there__is_a_usage_error(shared_name: str) -> None:
    SharedStore(shared_name, keys=128).close()
    ran = run("doctor", f"shared://{shared_name}?lock_timeout=x")
    assert ran.exit_code == 2
    assert "lock_timeout must be a number, got 'x'" in ran.stderr


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
def test_doctor__memory__has_nothing_to_check(url: str) -> None:
    ran = run("doctor", url)
    assert ran.exit_code == 0
    assert "there is nothing to check" in ran.stdout


def test_doctor__a_kind_of_state_it_does_not_know__is_tried_all_the_same() -> None:
    found = list(doctor._examined_server(Opened(MemoryStore(), 1.0)))
    assert [(finding.check, finding.verdict) for finding in found] == [
        ("servers", "mind"),
        ("decisions", "good"),
        ("workers", "good"),
    ]


def test_doctor__behind_sentinels__examines_the_primary_and_says_when_there_is_none(server: Server) -> None:
    with Sentinels(server, 1, 1) as sentinels:
        findings = listed("doctor", "--json", sentinels.url)
        assert {finding["verdict"] for finding in findings} == {"good"}
        assert str(server.port) in findings[0]["detail"]
        assert run("workers", sentinels.url).exit_code == 0
    result = run("doctor", sentinels.url)
    assert result.exit_code == 1
    assert "no sentinel led to a primary" in result.output
