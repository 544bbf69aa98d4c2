"""A database that is locked, full, read-only or down: callers are served, and events say what was lost."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cache.harness import CacheHarness, FakeSource
from tests.support import wait_until

from comporta import CacheUnavailableError, HealthCache
from comporta.cache import repository
from comporta.cache.tables import CacheTables
from comporta.database.base import Database
from comporta.database.urls import open_database
from comporta.errors import DatabaseUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock, PostgresServer

Q = {"q": 1}
LONG = "x" * 50_000
"""More than fits into the free part of a database page."""

Fault = Callable[[], AbstractContextManager[None]]
FAULTS = [
    "sqlite locked",
    "sqlite full",
    "sqlite read-only",
    "sqlite down",
    "postgresql read-only",
    "postgresql down",
]


class FaultyDatabase:
    """A database, and a context manager that makes it fail."""

    def __init__(self, database: Database, fault: Fault) -> None:
        self.database = database
        self.fault = fault


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Start a server that tests may make fail."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=FAULTS)
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FaultyDatabase]:
    kind, _, fault = request.param.partition(" ")
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("own_postgres")
        with closing(open_database(f"{server.url}?timeout=2")) as database:
            HealthCache(database, migrate=True, state="memory://").sync.close()
            server.command("TRUNCATE search_results_cache, search_cache_tags, search_fetches")
            yield FaultyDatabase(
                database,
                {"down": lambda: _kill_server(server), "read-only": lambda: _read_only(server)}[fault],
            )
        return
    path = tmp_path / "x.db"
    with closing(open_database(f"sqlite:///{path}?timeout=0.2")) as database:
        HealthCache(database, migrate=True, state="memory://").sync.close()
        faults: dict[str, Fault] = {
            "locked": lambda: _lock_file(path),
            "full": lambda: _with_setting(database, "max_page_count", "1", "1073741823"),
            "read-only": lambda: _with_setting(database, "query_only", "1", "0"),
            "down": lambda: _move_file(path),
        }
        yield FaultyDatabase(database, faults[fault])


def _readable(database: Database) -> bool:
    try:
        CacheTables(database).check()
    except DatabaseUnavailableError:
        return False
    return True


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _with_setting(database: Database, setting: str, bad: str, good: str) -> Iterator[None]:
    writer = database._writer  # type: ignore[attr-defined]
    writer.execute(f"PRAGMA {setting} = {bad}")
    yield
    writer.execute(f"PRAGMA {setting} = {good}")


@contextmanager
def _move_file(path: Path) -> Iterator[None]:
    aside = path.with_name("aside")
    aside.mkdir()
    moved = list(path.parent.glob("x.db*"))
    for file in moved:
        file.rename(aside / file.name)
    path.mkdir()
    yield
    path.rmdir()
    for file in moved:
        (aside / file.name).rename(file)
    aside.rmdir()


@contextmanager
def _kill_server(server: PostgresServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


def _is_read_only(server: PostgresServer) -> bool:
    [[read_only]] = server.command("SHOW default_transaction_read_only")
    others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
    [[connections]] = server.command(f"SELECT COUNT(*) FROM pg_stat_activity WHERE {others}")  # noqa: S608 - constants
    return bool(read_only == "on" and connections == 0)


@contextmanager
def _read_only(server: PostgresServer) -> Iterator[None]:
    server.command("ALTER SYSTEM SET default_transaction_read_only = on")
    server.command("SELECT pg_reload_conf()")
    server.command("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    wait_until(lambda: _is_read_only(server))
    yield
    server.command("ALTER SYSTEM RESET default_transaction_read_only")
    server.command("SELECT pg_reload_conf()")
    server.command("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@pytest.fixture(params=["blocking", "async"])
def cache(
    request: pytest.FixtureRequest,
    faulty: FaultyDatabase,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[CacheHarness]:
    monkeypatch.setattr(repository, "ERROR_PAUSE_NS", 0)  # otherwise recovery would take another second
    options: dict[str, Any] = {
        "migrate": False,
        "state": "memory://",
        "fresh": 100,
        "stale": 1000,
        "clock": clock,
    }
    health_cache = HealthCache(faulty.database, local_ttl=10, **options)
    with asyncio.Runner() as runner:
        harness = CacheHarness(health_cache, runner if request.param == "async" else None)
        yield harness
        harness.close()


def test_fetch__database_fails__serves_every_caller(
    faulty: FaultyDatabase, cache: CacheHarness, source: FakeSource, clock: ManualClock
) -> None:
    known, source.value = FakeSource(LONG), [LONG]
    cache.fetch({"q": "known"}, known)
    with faulty.fault():
        assert cache.fetch({"q": "known"}, known).source == "memory"
        assert cache.fetch(Q, source).value == [LONG]
        assert cache.fetch(Q, source).source == "memory"
        clock.advance(11)
        assert cache.fetch({"q": "known"}, known).value == LONG
        assert known.calls == 1
        clock.advance(100)
        stale = cache.fetch({"q": "known"}, known)
        assert (stale.value, stale.freshness) == (LONG, "stale")
        cache.settle()
        assert known.calls == 2
        assert "cache_write_failed" in {event.kind for event in latest_events()}
    clock.advance(10_000)
    cache.wait_for(lambda: _readable(faulty.database))
    assert cache.fetch(Q, source).source == "origin"
    assert len(cache.row(cache.fetch(Q, source).params_hash).results) > len(LONG)


def test_fetch__database_and_source_fail__backs_off_locally(
    faulty: FaultyDatabase, cache: CacheHarness, source: FakeSource, clock: ManualClock
) -> None:
    source.error = OSError("down")
    with faulty.fault():
        with pytest.raises(OSError, match="down"):
            cache.fetch(Q, source)
        for _ in range(3):
            with pytest.raises(CacheUnavailableError, match="tried again in 60 s"):
                cache.fetch(Q, source)
        assert source.calls == 1
        health = cache.record_cache_fetch_failure("ana", Q)
        assert (health.fail_streak, health.degraded_until - health.now) == (2, 300)
        clock.advance(301)
        source.error = None
        assert cache.fetch(Q, source).value == ["a"]


def test_repository__after_an_error__does_not_wait_for_the_database(
    faulty: FaultyDatabase, source: FakeSource, clock: ManualClock
) -> None:
    cache = HealthCache(faulty.database, migrate=False, state="memory://", clock=clock)
    with faulty.fault():
        for n in range(10):
            assert cache.sync.fetch("ana", {"q": n}, source).value == ["a"]
        cache.sync.close()
    events = [event for event in latest_events() if event.kind == "cache_write_failed"]
    assert len(events) <= 3


@pytest.mark.parametrize("faulty", ["sqlite down"], indirect=True)
def test_repository__action_that_keeps_failing__publishes_one_event_until_it_succeeds(
    faulty: FaultyDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repository, "ERROR_PAUSE_NS", 0)
    monkeypatch.setattr(repository, "_EVENT_INTERVAL_NS", 0)
    earlier = len(_failed_reads())
    cache = HealthCache(faulty.database, migrate=False, state="memory://").sync

    def read() -> None:
        for _ in range(3):
            cache.get_from_cache("ana", Q)
            cache.refresh_due(dict)

    for _ in range(2):
        with faulty.fault():
            faulty.database.close()  # its connections still have the files
            read()
        read()
    cache.close()
    assert _failed_reads()[earlier:] == ["could not read", "could not read the due rows"] * 2


def _failed_reads() -> list[str]:
    return [event.text.partition(":")[0] for event in latest_events() if event.kind == "cache_read_failed"]


def test_cache__database_unreachable_at_start__publishes_an_event_and_works(
    tmp_path: Path, source: FakeSource
) -> None:
    (tmp_path / "x.db").mkdir()
    cache = HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://")
    assert cache.sync.fetch("ana", Q, source).value == ["a"]
    result = cache.sync.get_from_cache("ana", Q)
    assert result is not None
    assert result.source == "memory"
    assert not cache.sync.is_cache_key_degraded("ana", Q)
    assert {"cache_read_failed", "cache_write_failed"} <= {event.kind for event in latest_events()}
    cache.sync.close()


def test_save__database_rejects_one_value__stores_the_next(own_postgres: PostgresServer) -> None:
    with closing(open_database(f"{own_postgres.url}?timeout=10")) as database:
        cache = HealthCache(database, migrate=True, state="memory://")
        cache.sync.save_to_cache("u", {"q": "odd"}, [1], sources=["\0"])
        cache.sync.save_to_cache("u", {"q": "plain"}, [2])
        cache.sync.close()
        rows = CacheTables(database).list_rows(user_id="u")
    assert len(rows) == 1
    assert any("cache_write_failed" in str(event) for event in latest_events())


def test_stats__server_unreachable__reports_the_read_error(source: FakeSource) -> None:
    with PostgresServer() as server:
        url = f"{server.url}?timeout=2"
    cache = HealthCache(url, state="memory://")
    stats = cache.sync.stats()
    assert stats["degraded_keys_count"] is stats["last_24_hours"] is None
    assert "postgresql://127.0.0.1" in stats["unreadable"]
    assert stats["memory"] == {"entries": 0, "loading": 0}
    assert asyncio.run(cache.refresh_due(lambda params: source())) == cache.sync.refresh_due(dict) == 0
    assert source.calls == 0
    assert "cache_read_failed" in {event.kind for event in latest_events()}
    cache.sync.close()


def test_get__table_unreadable_and_local_entry_expired__returns_the_local_entry(
    tmp_path: Path, source: FakeSource, clock: ManualClock
) -> None:
    cache = HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://", clock=clock, fresh=10, stale=100)
    cache.sync.fetch("ana", Q, source)
    clock.advance(50)
    cache._core._repository._failed_ns[repository.READ] = time.monotonic_ns() + 10**12
    result = cache.sync.get_from_cache("ana", Q)
    assert result is not None
    assert (result.value, result.freshness) == (["a"], "stale")
    assert cache.sync.get_from_cache("ana", {"q": 2}) is None
    assert cache.sync.stats()["unreadable"] == ""
    cache.sync.close()
