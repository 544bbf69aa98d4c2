"""A database that is locked, full, read-only or gone: callers are served, and what was not kept is said."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cache.faces import Face, Source

from comporta import CacheUnavailableError, HealthCache
from comporta.cache import books
from comporta.cache.table import CacheTable
from comporta.database.base import Database
from comporta.database.urls import open_database
from comporta.errors import DatabaseUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock, PostgresServer

Q = {"q": 1}
LONG = "x" * 50_000
"""More than fits into what is left of a page."""

Trouble = Callable[[], AbstractContextManager[None]]
TROUBLES = [
    "sqlite locked",
    "sqlite full",
    "sqlite read-only",
    "sqlite gone",
    "postgresql read-only",
    "postgresql gone",
]


class Stage:
    """A database, and a way to bring it into trouble."""

    def __init__(self, database: Database, trouble: Trouble) -> None:
        self.database = database
        self.trouble = trouble


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Give a server that may be brought into trouble."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=TROUBLES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    kind, _, what = request.param.partition(" ")
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("own_postgres")
        with closing(open_database(f"{server.url}?timeout=2")) as database:
            HealthCache(database, migrate=True, state="memory://").sync.close()
            server.command("TRUNCATE search_results_cache, search_fetches")
            yield Stage(database, {"gone": lambda: _dead(server), "read-only": lambda: _closed(server)}[what])
        return
    path = tmp_path / "x.db"
    with closing(open_database(f"sqlite:///{path}?timeout=0.2")) as database:
        HealthCache(database, migrate=True, state="memory://").sync.close()
        troubles: dict[str, Trouble] = {
            "locked": lambda: _locked(path),
            "full": lambda: _told(database, "max_page_count", "1", "1073741823"),
            "read-only": lambda: _told(database, "query_only", "1", "0"),
            "gone": lambda: _moved(path),
        }
        yield Stage(database, troubles[what])


def _readable(database: Database) -> bool:
    try:
        CacheTable(database).check()
    except DatabaseUnavailableError:
        return False
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextmanager
def _told(database: Database, setting: str, bad: str, good: str) -> Iterator[None]:
    writer = database._writer  # type: ignore[attr-defined]
    writer.execute(f"PRAGMA {setting} = {bad}")
    yield
    writer.execute(f"PRAGMA {setting} = {good}")


@contextmanager
def _moved(path: Path) -> Iterator[None]:
    aside = path.with_name("aside")
    aside.mkdir()
    moved = list(path.parent.glob("x.db*"))
    for found in moved:
        found.rename(aside / found.name)
    path.mkdir()
    yield
    path.rmdir()
    for found in moved:
        (aside / found.name).rename(found)


@contextmanager
def _dead(server: PostgresServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def _closed(server: PostgresServer) -> Iterator[None]:
    server.command("ALTER SYSTEM SET default_transaction_read_only = on")
    server.command("SELECT pg_reload_conf()")
    server.command("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    time.sleep(0.3)
    yield
    server.command("ALTER SYSTEM RESET default_transaction_read_only")
    server.command("SELECT pg_reload_conf()")
    server.command("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@pytest.fixture(params=["blocking", "awaiting"])
def face(
    request: pytest.FixtureRequest, stage: Stage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Face]:
    monkeypatch.setattr(books, "AWAY_NS", 0)  # or the end of a trouble would be seen a second late
    given: dict[str, Any] = {
        "migrate": False,
        "state": "memory://",
        "fresh": 100,
        "stale": 1000,
        "clock": clock,
    }
    cache = HealthCache(stage.database, level_seconds=10, **given)
    with asyncio.Runner() as runner:
        made = Face(cache, runner if request.param == "awaiting" else None)
        yield made
        made.close()


def test_fetch__database_in_trouble__everybody_is_served(
    stage: Stage, face: Face, source: Source, clock: ManualClock
) -> None:
    known, source.value = Source(LONG), [LONG]
    face.fetch({"q": "known"}, known)
    with stage.trouble():
        assert face.fetch({"q": "known"}, known).source == "memory"
        assert face.fetch(Q, source).value == [LONG]
        assert face.fetch(Q, source).source == "memory"
        clock.advance(11)
        assert face.fetch({"q": "known"}, known).value == LONG
        assert known.calls == 1
        clock.advance(100)
        stale = face.fetch({"q": "known"}, known)
        assert (stale.value, stale.freshness) == (LONG, "stale")
        face.settle()
        assert known.calls == 2
        assert "cache_not_kept" in {event.kind for event in latest_events()}
    clock.advance(10_000)
    face.wait_for(lambda: _readable(stage.database))
    assert face.fetch(Q, source).source == "origin"
    assert len(face.row(face.fetch(Q, source).params_hash).results) > len(LONG)


def test_fetch__database_in_trouble_and_source_failing__is_left_alone_by_this_worker(
    stage: Stage, face: Face, source: Source, clock: ManualClock
) -> None:
    source.error = OSError("down")
    with stage.trouble():
        with pytest.raises(OSError, match="down"):
            face.fetch(Q, source)
        for _ in range(3):
            with pytest.raises(CacheUnavailableError, match="tried again in 60 s"):
                face.fetch(Q, source)
        assert source.calls == 1
        health = face.record_cache_fetch_failure("ana", Q)
        assert (health.fail_streak, health.degraded_until - health.now) == (2, 300)
        clock.advance(301)
        source.error = None
        assert face.fetch(Q, source).value == ["a"]


def test_books__after_an_error__nobody_waits_for_the_database(
    stage: Stage, source: Source, clock: ManualClock
) -> None:
    cache = HealthCache(stage.database, migrate=False, state="memory://", clock=clock)
    with stage.trouble():
        for n in range(10):
            assert cache.sync.fetch("ana", {"q": n}, source).value == ["a"]
        cache.sync.close()
    kept = [event for event in latest_events() if event.kind == "cache_not_kept"]
    assert len(kept) <= 3


def test_cache__database_out_of_reach_at_the_start__is_said_and_lived_with(
    tmp_path: Path, source: Source
) -> None:
    (tmp_path / "x.db").mkdir()
    cache = HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://")
    assert cache.sync.fetch("ana", Q, source).value == ["a"]
    found = cache.sync.get_from_cache("ana", Q)
    assert found is not None
    assert found.source == "memory"
    assert not cache.sync.is_cache_key_degraded("ana", Q)
    assert {"cache_unreadable", "cache_not_kept"} <= {event.kind for event in latest_events()}
    cache.sync.close()


def test_save__one_answer_the_database_cannot_take__the_next_is_kept(own_postgres: PostgresServer) -> None:
    with closing(open_database(f"{own_postgres.url}?timeout=10")) as database:
        cache = HealthCache(database, migrate=True, state="memory://")
        cache.sync.save_to_cache("u", {"q": "odd"}, [1], sources=["\0"])
        cache.sync.save_to_cache("u", {"q": "plain"}, [2])
        cache.sync.close()
        rows = CacheTable(database).rows(user_id="u")
    assert len(rows) == 1
    assert any("cache_not_kept" in str(event) for event in latest_events())


def test_figures__server_gone__say_what_could_not_be_read(source: Source) -> None:
    with PostgresServer() as server:
        url = f"{server.url}?timeout=2"
    cache = HealthCache(url, state="memory://")
    figures = cache.sync.figures()
    assert figures["degraded_keys_count"] is figures["last_24_hours"] is None
    assert "postgresql://127.0.0.1" in figures["unreadable"]
    assert figures["memory"] == {"entries": 0, "loading": 0}
    assert asyncio.run(cache.refresh_due(lambda params: source())) == cache.sync.refresh_due(dict) == 0
    assert source.calls == 0
    assert "cache_unreadable" in {event.kind for event in latest_events()}
    cache.sync.close()


def test_get__table_gone_and_memory_out_of_date__gives_what_is_left(
    tmp_path: Path, source: Source, clock: ManualClock
) -> None:
    cache = HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://", clock=clock, fresh=10, stale=100)
    cache.sync.fetch("ana", Q, source)
    clock.advance(50)
    cache._asking._books._failed_ns[books.READ] = time.monotonic_ns() + 10**12
    found = cache.sync.get_from_cache("ana", Q)
    assert found is not None
    assert (found.value, found.freshness) == (["a"], "stale")
    assert cache.sync.get_from_cache("ana", {"q": 2}) is None
    assert cache.sync.figures()["unreadable"] == ""
    cache.sync.close()
