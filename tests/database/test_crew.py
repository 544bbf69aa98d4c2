"""The threads of a database: bounded, and in nobody's way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from comporta.database import crew as crew_module
from comporta.database.crew import Crew
from comporta.errors import DatabaseBusyError


async def busy(crew: Crew) -> tuple[threading.Event, asyncio.Task[bool]]:
    """Keep the one thread of a crew at work until the event."""
    free, at_work = threading.Event(), threading.Event()

    def work(_: float) -> bool:
        at_work.set()
        return free.wait(60)

    task = asyncio.create_task(crew.run(work))
    await asyncio.to_thread(at_work.wait, 60)
    return free, task


def test_run__work_raises__is_raised_where_it_was_wanted() -> None:
    crew = Crew("db", 1, 60)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(crew.run(lambda _: 1 // 0))
    crew.close()
    crew.close()


def test_run__own_thread__is_not_of_the_default_executor() -> None:
    crew = Crew("db", 1, 60)
    name = asyncio.run(crew.run(lambda _: threading.current_thread().name))
    assert name.startswith("comporta-database")
    crew.close()


def test_run__turn_comes_too_late__is_busy() -> None:
    async def waits() -> None:
        crew = Crew("db", 1, 60)
        free, first = await busy(crew)
        crew._seconds = 0.01
        second = asyncio.create_task(crew.run(lambda _: True))
        await asyncio.sleep(0.05)
        free.set()
        assert await first
        with pytest.raises(DatabaseBusyError, match=r"db: its turn did not come within 0\.01 s"):
            await second
        crew.close()

    asyncio.run(waits())


def test_run__turn_comes_late__has_only_the_rest_of_the_time() -> None:
    async def waits() -> None:
        crew = Crew("db", 1, 60)
        free, first = await busy(crew)
        second = asyncio.create_task(crew.run(lambda left: left))
        await asyncio.sleep(0.1)
        free.set()
        assert await first
        assert 0 < await second < 60 - 0.09
        crew.close()

    asyncio.run(waits())


def test_run__too_many_in_line__is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "WAITING_MAX", 2)

    async def waits() -> None:
        crew = Crew("db", 1, 60)
        free, first = await busy(crew)
        second = asyncio.create_task(crew.run(lambda _: True))
        await asyncio.sleep(0)
        with pytest.raises(DatabaseBusyError, match="db: 2 calls are waiting already"):
            await crew.run(lambda _: True)
        second.cancel()
        await asyncio.wait([second])
        third = asyncio.create_task(crew.run(lambda _: True))
        await asyncio.sleep(0)
        free.set()
        assert await first
        assert await third
        crew.close()

    asyncio.run(waits())


def test_crew__after_a_fork__has_threads_of_its_own() -> None:
    crew = Crew("db", 1, 60)
    pool = crew._started()
    crew.after_fork()
    assert asyncio.run(crew.run(lambda _: True))
    assert crew._pool is not pool
    pool.shutdown()
    crew.close()
