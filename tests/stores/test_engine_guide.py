"""The engine of docs/guides/write-a-state-engine.md, as it stands on the page (F10)."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support import wait_until

from comporta import TokenBucketLimiter, state_schemes
from comporta.limits.limiter import BaseLimiter
from comporta.stores.registry import close_stores
from comporta.testing import StoreConformance

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "write-a-state-engine.md"
TEXT = PAGE.read_text("utf-8")
[ENGINE] = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
[USE, CONFORMANCE] = re.findall(r"^~~~python\n(.*?)^~~~", TEXT, re.DOTALL | re.MULTILINE)


def load_module(name: str, text: str) -> ModuleType:
    module = ModuleType(name)
    exec(compile(text, f"{PAGE.name}:{name}", "exec"), module.__dict__)  # noqa: S102 - the page's own code
    return module


SQLITE_ENGINE = sys.modules["sqlite_engine"] = load_module("sqlite_engine", ENGINE)
state_schemes._registered.pop("sqlite")  # only the tests below use it
TestSqliteStore: type[StoreConformance] = load_module("conformance", CONFORMANCE).TestSqliteStore


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return the directory of a state file, with the scheme registered."""
    state_schemes.register_scheme("sqlite", SQLITE_ENGINE.open_sqlite)
    (tmp_path / "state").mkdir()
    yield tmp_path / "state"
    close_stores()
    state_schemes._registered.pop("sqlite")


def test_guide_example__limiter_by_url__works_as_shown(directory: Path) -> None:
    names: dict[str, Any] = {}
    exec(USE.replace("/var/lib/app/state.db", f"{directory}/state.db"), names)  # noqa: S102 - as above
    assert names["limiter"].sync.acquire()
    assert (directory / "state.db").exists()


def test_guide_example__two_limiters_on_one_file__share_the_limit(directory: Path) -> None:
    url = f"sqlite://{directory}/state.db"
    first = TokenBucketLimiter("10/hour", url, "shared").sync
    second = TokenBucketLimiter("10/hour", SQLITE_ENGINE.SqliteStore(f"{directory}/state.db"), "shared").sync
    granted = [limiter.acquire("k") for limiter in (first, second) * 8]
    assert granted == [True] * 10 + [False] * 6


def test_guide_example__file_locked_by_another_process__is_a_timeout_and_other_errors_are_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SQLITE_ENGINE, "LOCK_SECONDS", 0.01)
    store = SQLITE_ENGINE.SqliteStore(directory / "state.db")
    with store._transaction(), pytest.raises(Exception, match=r"was locked for 0\.01 s") as locked:
        TokenBucketLimiter("10/hour", store, "n").sync.acquire()
    assert type(locked.value).__name__ == "StateTimeoutError"
    (directory / "text.db").write_text("not a database" * 100)
    store = SQLITE_ENGINE.SqliteStore(directory / "text.db")
    with pytest.raises(Exception, match="cannot be used: file is not a database") as broken:
        TokenBucketLimiter("10/hour", store, "n").sync.acquire()
    assert type(broken.value).__name__ == "StateUnavailableError"


class Callers:
    """Threads and coroutines that acquire from one limiter until they are stopped."""

    def __init__(self, limiter: BaseLimiter) -> None:
        self.limiter = limiter
        self.granted = 0
        self.refused = 0
        self.errors: list[BaseException] = []
        self._stopped = threading.Event()
        threads = [self._call_blocking, self._call_blocking, lambda: asyncio.run(self._call_awaiting())]
        self._threads = [threading.Thread(target=call) for call in threads]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _call_blocking(self) -> None:
        while not self._stopped.is_set():
            try:
                self._count(self.limiter.sync.acquire("k"))
            except BaseException as error:
                self.errors.append(error)

    async def _call_awaiting(self) -> None:
        while not self._stopped.is_set():
            try:
                self._count(await self.limiter.acquire("k"))
            except BaseException as error:
                self.errors.append(error)
            await asyncio.sleep(0)

    def _count(self, granted: bool) -> None:
        if granted:
            self.granted += 1
        else:
            self.refused += 1


def test_guide_example__backend_taken_away_under_load__callers_use_the_share_until_it_is_back(
    directory: Path,
) -> None:
    limiter = TokenBucketLimiter("200/s burst 10", f"sqlite://{directory}/state.db", "load")
    away = directory.with_name("away")
    with Callers(limiter) as callers:
        wait_until(lambda: callers.granted > 20)
        began = time.monotonic()
        directory.rename(away)
        wait_until(lambda: limiter.fallback is not None)
        before = callers.granted
        wait_until(lambda: callers.granted > before + 20)  # the only worker has the whole limit as its share
        assert limiter.fallback is not None
        assert "state.db cannot be used: " in limiter.fallback.reason
        away.rename(directory)
        wait_until(lambda: limiter.fallback is None)
        before = callers.granted
        wait_until(lambda: callers.granted > before + 20)
        seconds = time.monotonic() - began
    assert callers.errors == []
    assert callers.refused > 0
    assert callers.granted <= 20 + 10 + 10 + 200 * (seconds + 1), "one limit, and a burst at each switch"


def test_guide_example__backend_away_at_the_start__is_used_once_it_is_there(directory: Path) -> None:
    limiter = TokenBucketLimiter("100/s burst 10", f"sqlite://{directory}/later/state.db", "later")
    limiter.sync.acquire()
    assert limiter.fallback is not None
    (directory / "later").mkdir()
    wait_until(lambda: limiter.fallback is None)
    assert limiter.sync.acquire(timeout=5)
    assert (directory / "later" / "state.db").exists()


def test_guide_example__url_without_a_path__is_refused(directory: Path) -> None:
    with pytest.raises(ValueError, match="sqlite:// needs the path of a file"):
        TokenBucketLimiter("1/s", "sqlite://", "n")
