"""What the doctor's checks make of what they are told."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import count

import pytest

from comporta.cli import checks, server_checks, shared_checks
from comporta.cli.states import SharedUrl
from comporta.stores.memory import MemoryStore
from comporta.stores.redis import RedisStore
from comporta.stores.table import KEYS_MAX
from comporta.testing import ManualClock

NOBODY = "redis://127.0.0.1:1/0"


class HurriedClock(ManualClock):
    """An hour passes at every look."""

    def __init__(self) -> None:
        super().__init__()
        self._hours = count(1)

    def now_ns(self) -> int:
        return next(self._hours) * 3_600_000_000_000


@pytest.mark.parametrize(
    ("times_ms", "verdict"),
    [
        ([1.0] * 198 + [90.0] * 2, "good"),
        ([1.0] * 197 + [26.0] * 3, "mind"),
        ([1.0] * 197 + [51.0] * 3, "mend"),
    ],
)
def test_promptness__against_a_deadline_of_50_ms__goes_by_the_slow_ones(
    times_ms: list[float], verdict: str
) -> None:
    found = checks.promptness(times_ms, 0.05)
    assert found.verdict == verdict
    assert found.detail.startswith(f"p50 1.00 ms, p99 {times_ms[197]:.2f} ms, max {times_ms[-1]:.2f} ms")
    assert "a decision may take 50 ms" in found.detail


def test_decisions__state_out_of_reach__names_the_strategy() -> None:
    found = checks.decisions(RedisStore(NOBODY))
    assert found.verdict == "mend"
    assert found.detail.startswith(f"token_bucket: {NOBODY}")


def test_decisions__answered_wrongly__is_noticed() -> None:
    found = checks.decisions(MemoryStore(HurriedClock()))
    assert found.verdict == "mend"
    assert found.detail == "token_bucket: asked twice for the one there is, answered [True, True]"


def test_workers__state_out_of_reach__mends() -> None:
    assert checks.workers(RedisStore(NOBODY)).verdict == "mend"


def test_trial__commands__are_all_that_the_scripts_call() -> None:
    called = set()
    for package in ("comporta.breaker", "comporta.limits", "comporta.retry", "comporta.stores"):
        for file in files(package).iterdir():
            if file.name.endswith(".lua"):
                called |= set(re.findall(r"call\('([A-Z]+)'", file.read_text("utf-8")))
    tried = {words[0] for words in server_checks.trial("x")}
    assert tried == called | {"EVAL", "EVALSHA"}


@pytest.mark.parametrize(
    ("told", "verdict"),
    [("6.2.0", "good"), ("10.0.1", "good"), ("6.0.16", "mend"), ("5.0.7", "mend"), ("", "mind")],
)
def test_version__told__is_held_against_the_oldest_there_is(told: str, verdict: str) -> None:
    assert server_checks.version({"server": "redis", "version": told}).verdict == verdict


@pytest.mark.parametrize(("role", "verdict"), [("master", "good"), ("slave", "mend"), ("replica", "mend")])
def test_role__told__must_take_writes(role: str, verdict: str) -> None:
    assert server_checks.role({"role": role}).verdict == verdict


@pytest.mark.parametrize(
    ("seconds", "verdict", "said"),
    [(0.9, "good", "0.900 s ahead"), (-1.1, "mind", "1.100 s behind"), (3600, "mind", "harmless")],
)
def test_clock__apart__is_harmless_but_said(seconds: float, verdict: str, said: str) -> None:
    found = server_checks.clock_apart(seconds)
    assert found.verdict == verdict
    assert said in found.detail


@pytest.mark.parametrize(("used", "verdict"), [("80", "good"), ("81", "mind")])
def test_room__of_a_server__warns_above_four_fifths(used: str, verdict: str) -> None:
    assert server_checks.room({"maxmemory": "100", "used_memory": used}).verdict == verdict


@pytest.mark.parametrize(("taken", "verdict"), [(102, "good"), (103, "mind")])
def test_use__fullest_class__warns_above_four_fifths(taken: int, verdict: str) -> None:
    assert shared_checks.use([(0, 1024), (taken, 128), (1, 128)]).verdict == verdict


def test_room__of_a_folder_larger_than_what_is_free__mends() -> None:
    found = shared_checks.room(SharedUrl("x", KEYS_MAX), free=2**30)
    assert found.verdict == "mend"
    assert found.detail.endswith("ask for fewer with ?keys=")


def test_folder__of_another_user__mends(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    assert "belongs to user" in shared_checks.folder(str(tmp_path)).detail
