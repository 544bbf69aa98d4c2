"""What must stay within its bounds whatever loaders, loops and users do."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from tests.cache.conftest import Make
from tests.cache.faces import Source

from comporta import HealthCache, Loaded
from comporta.errors import CacheUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"q": "x"}


def test_get__a_name_that_holds_another_users_key__is_refused(make: Make, source: Source) -> None:
    cache = make(scope="user")
    theirs = cache.fetch(Q, source, user="a:b")
    cache.fetch({"q": "other"}, source, user="a")
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        cache.get_from_cache("a", f"b:{theirs.params_hash}")


def test_evict__ten_hot_answers__the_one_just_fetched_stays(make: Make, source: Source) -> None:
    cache = make(entries_per_user=2)
    for number in range(2):
        for _ in range(12):
            cache.fetch({"q": number}, source)
    cache.flush()
    new = cache.fetch(Q, source)
    assert cache.row(new.params_hash).has_value
    assert make().fetch(Q, source).source == "database"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration(), KeyError("x")])
def test_fetch__loader_raises_anything__is_called_once(
    make: Make, source: Source, error: BaseException
) -> None:
    cache = make()
    source.error = error
    with pytest.raises(Exception):  # noqa: B017, PT011 - whichever: what counts is the calls
        cache.fetch(Q, source)
    with pytest.raises(CacheUnavailableError):
        cache.fetch(Q, source)
    assert source.calls == 1


def test_fetch__coroutine_cancels_itself__is_a_failure(database_url: str) -> None:
    calls = 0

    async def search() -> list[str]:
        nonlocal calls
        calls += 1
        raise asyncio.CancelledError

    async def main() -> None:
        async with HealthCache(database_url, state="memory://", migrate=True) as cache:
            for _ in range(2):
                with pytest.raises(Exception):  # noqa: B017, PT011 - see above
                    await cache.fetch("ana", Q, search)

    asyncio.run(main())
    assert calls == 1
