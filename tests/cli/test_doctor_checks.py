"""The single checks of ``comporta doctor``."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import count
from pathlib import Path

import pytest

from comporta.cli import doctor_checks, doctor_redis, doctor_shared
from comporta.cli.state_option import SharedUrl
from comporta.stores.memory import MemoryStore
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.table import TableUsage
from comporta.testing import ManualClock

UNREACHABLE_URL = "redis://127.0.0.1:1/0"


class RacingClock(ManualClock):
    """A clock that advances by an hour at every reading."""

    def __init__(self) -> None:
        super().__init__()
        self._hours = count(1)

    def now_ns(self) -> int:
        return next(self._hours) * 3_600_000_000_000


@pytest.mark.parametrize(
    ("times_ms", "status"),
    [
        ([1.0] * 198 + [90.0] * 2, "ok"),
        ([1.0] * 197 + [26.0] * 3, "warn"),
        ([1.0] * 197 + [51.0] * 3, "fail"),
    ],
)
def test_latency_finding__time_out_of_50_ms__is_decided_by_p99(times_ms: list[float], status: str) -> None:
    finding = doctor_checks.latency_finding(times_ms, 0.05)
    assert finding.status == status
    assert finding.detail.startswith(f"p50 1.00 ms, p99 {times_ms[197]:.2f} ms, max {times_ms[-1]:.2f} ms")
    assert "the time-out of a decision is 50 ms" in finding.detail


def test_check_decisions__unreachable_state__names_the_strategy() -> None:
    finding = doctor_checks.check_decisions(RedisStore(UNREACHABLE_URL))
    assert finding.status == "fail"
    assert finding.detail.startswith(f"token_bucket: {UNREACHABLE_URL}")


def test_check_decisions__wrong_decision__fails() -> None:
    finding = doctor_checks.check_decisions(MemoryStore(RacingClock()))
    assert finding.status == "fail"
    assert finding.detail == "token_bucket: expected [True, False] for a limit of 1, got [True, True]"


def test_check_workers__unreachable_state__fails() -> None:
    assert doctor_checks.check_workers(RedisStore(UNREACHABLE_URL)).status == "fail"


def test_command_trials__commands__are_those_of_the_scripts() -> None:
    called = set()
    for package in ("comporta.breaker", "comporta.limits", "comporta.retry", "comporta.stores"):
        for file in Path(str(files(package))).rglob("*"):
            if file.name.endswith(".lua"):
                called |= set(re.findall(r"call\('([A-Z]+)'", file.read_text("utf-8")))
    trials = {words[0] for words in doctor_redis.command_trials("x")}
    assert trials == called | {"EVAL", "EVALSHA"}


@pytest.mark.parametrize(
    ("version", "status"),
    [("6.2.0", "ok"), ("10.0.1", "ok"), ("6.0.16", "fail"), ("5.0.7", "fail"), ("", "warn")],
)
def test_check_version__version__is_compared_with_the_oldest_supported(version: str, status: str) -> None:
    assert doctor_redis.check_version({"server": "redis", "version": version}).status == status


@pytest.mark.parametrize(("role", "status"), [("master", "ok"), ("slave", "fail"), ("replica", "fail")])
def test_check_role__replica__fails(role: str, status: str) -> None:
    assert doctor_redis.check_role({"role": role}).status == status


@pytest.mark.parametrize(
    ("seconds", "status", "text"),
    [(0.9, "ok", "0.900 s ahead"), (-1.1, "warn", "1.100 s behind"), (3600, "warn", "harmless")],
)
def test_clock_finding__more_than_1_s_apart__warns(seconds: float, status: str, text: str) -> None:
    finding = doctor_redis.clock_finding(seconds)
    assert finding.status == status
    assert text in finding.detail


@pytest.mark.parametrize(("used", "status"), [("80", "ok"), ("81", "warn")])
def test_check_memory__more_than_80_percent_used__warns(used: str, status: str) -> None:
    assert doctor_redis.check_memory({"maxmemory": "100", "used_memory": used}).status == status


@pytest.mark.parametrize(
    ("is_disk_full", "has_evicted", "status", "detail"),
    [
        (False, False, "ok", "1,000 keys (expired ones included) in 7 of 256 MB"),
        (False, True, "warn", "keys were evicted; use another name with a larger ?memory="),
        (True, True, "warn", "the disk is full, so the table cannot grow; enlarge it (--shm-size)"),
    ],
)
def test_check_usage__full_table__warns(
    is_disk_full: bool, has_evicted: bool, status: str, detail: str
) -> None:
    finding = doctor_shared.check_usage(TableUsage(1000, 6.7, 256, is_disk_full, has_evicted))
    assert finding.status == status
    assert finding.detail.endswith(detail)


@pytest.mark.parametrize(("free_mb", "status"), [(3, "fail"), (64, "warn"), (256, "ok")])
def test_check_space__table_larger_than_the_free_space__says_so(free_mb: int, status: str) -> None:
    finding = doctor_shared.check_space(SharedUrl("x", 256), free=free_mb * 2**20)
    assert finding.status == status
    assert finding.detail.startswith(f"{free_mb} MB free, the table grows to 256 MB")


def test_check_directory__owned_by_another_user__fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert "belongs to user" in doctor_shared.check_directory(str(tmp_path)).detail


def test_processes__many_use_a_removed_table__names_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for pid in range(1, 8):
        (tmp_path / str(pid)).mkdir()
        line = f"7f00-7f01 rw-s 00000000 00:1a {pid}   /x/comporta-0-n-v2.1.2/table (deleted)\n"
        (tmp_path / str(pid) / "maps").write_text(line)
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "maps").mkdir()  # cannot be read
    monkeypatch.setattr(doctor_shared, "_PROCESSES", tmp_path)
    [finding] = doctor_shared.check_processes("/x/comporta-0-n-v2")
    assert "7 of 7 processes use a table that was removed (1, 2, 3, 4, 5, …)" in finding.detail
