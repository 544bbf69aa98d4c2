"""Removing results by parameters, key, tag and prefix, reading many at once, and decorated functions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import CacheHarness, FakeSource
from tests.support import wait_until

from comporta import HealthCache
from comporta.cache.params import hash_params
from comporta.database.base import Database, Statement
from comporta.errors import CacheUnavailableError, DatabaseError
from comporta.testing import ManualClock, Server

Q = {"q": "x"}
COUNT_TAGS = Statement("SELECT COUNT(*) FROM search_cache_tags")


def is_cached(cache: CacheHarness, params: Any, user: str = "ana") -> bool:
    return cache.get_from_cache(user, params) is not None


def test_delete__cached_key__is_removed_for_all_users(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    cache.save_to_cache("bob", Q, ["older"])
    cache.save_to_cache("ana", Q, ["newer"])
    cache.save_to_cache("ana", {"q": 2}, ["other"])
    assert is_cached(cache, Q)
    assert cache.delete("ana", Q) is True
    assert not is_cached(cache, Q)
    assert cache.delete(None, hash_params(Q)[0]) is False
    assert is_cached(cache, {"q": 2})
    assert cache.fetch(Q, source).source == "origin"


def test_delete__users_are_separate__leaves_other_users(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache(scope="user")
    for user in ("ana", "bob"):
        cache.fetch(Q, source, user=user)
    assert cache.delete("ana", Q)
    assert [is_cached(cache, Q, user) for user in ("ana", "bob")] == [False, True]


def test_delete__key_in_backoff__may_be_fetched_at_once(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    for is_kept in (True, False):
        cache.record_cache_fetch_failure("ana", Q)
        if not is_kept:
            cache.cache._core.database.write([Statement("DELETE FROM search_results_cache")], {})
        with pytest.raises(CacheUnavailableError):
            cache.fetch(Q, source)
        assert cache.delete("ana", Q) == is_kept
        assert cache.fetch(Q, source).value == ["a"]
        cache.delete("ana", Q)


def test_delete__fetch_is_running__its_result_is_not_stored(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(150)
    source.may_return.clear()
    cache.fetch(Q, source)
    cache.wait_for(lambda: source.calls == 2)
    assert cache.delete("ana", Q)
    source.may_return.set()
    cache.settle()
    assert not is_cached(make_cache(), Q)


@pytest.mark.parametrize("scope", ["params", "user"])
def test_invalidate__key_tag_and_prefix__remove_what_they_name(
    make_cache: MakeCache, source: FakeSource, database: Database, scope: str
) -> None:
    cache, other = make_cache(scope=scope), make_cache(scope=scope, name="other")
    for n, (key, tags) in enumerate(
        [("search:a", ["x", "y"]), ("search:b", ["x"]), ("searches", ["search:a"]), (None, []), ("é:1", "é")]
    ):
        cache.fetch({"q": n}, source, key=key, tags=list(tags))
    other.fetch({"q": 0}, source, key="search:a", tags=["x"])

    def cached() -> list[int]:
        return [n for n in range(5) if is_cached(cache, {"q": n})]

    assert cache.invalidate(key="search:none") == cache.invalidate(tag="search:") == 0
    assert cache.invalidate(key="search:a") == 1
    assert cached() == [1, 2, 3, 4]
    assert cache.invalidate(prefix="search:") == 1
    assert cached() == [2, 3, 4]
    assert cache.invalidate(tag="search:a") == 1
    assert cached() == [3, 4]
    assert cache.invalidate(prefix="é") == 1
    assert cached() == [3]
    assert is_cached(other, {"q": 0})
    assert database.read(COUNT_TAGS, {}) == [(2,)]
    assert other.invalidate(tag="x") == 1
    assert database.read(COUNT_TAGS, {}) == [(0,)]


def test_invalidate__result_stored_again__has_the_new_tags(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    cache.fetch(Q, source, tags=["old", "both"])
    cache.fetch(Q, source, tags=["both", "both", "new"], force=True)
    assert cache.invalidate(tag="old") == 0
    assert database.read(COUNT_TAGS, {}) == [(2,)]
    assert cache.invalidate(tag="new") == 1


def test_invalidate__more_rows_than_a_transaction__removes_all(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.tags.REMOVED_MAX", 2)
    cache = make_cache()
    for n in range(5):
        cache.fetch({"q": n}, source, tags=["x"])
    assert cache.invalidate(tag="x") == 5


def test_invalidate__another_worker__drops_its_copy(
    database_url: str, valkey: Server, source: FakeSource
) -> None:
    one, two = (HealthCache(database_url, state=valkey.url, migrate=True).sync for _ in range(2))
    for each in (one, two):
        each.fetch("ana", Q, source, tags=["x"])
    # what the first worker published about its fetch may arrive after the second one has its copy
    wait_until(lambda: two.fetch("ana", Q, source).source == "memory")
    assert one.invalidate(tag="x") == 1
    wait_until(lambda: two.get_from_cache("ana", Q) is None)
    for each in (one, two):
        each.close()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "give exactly one of key, tag and prefix, got key=None"),
        ({"key": "a", "tag": "b"}, ValueError, "give exactly one"),
        ({"key": ""}, ValueError, "key must be 1 to 200 printable characters, got ''"),
        ({"tag": "a\n"}, ValueError, "tag must be 1 to 200 printable characters"),
        ({"tag": 5}, TypeError, "tag must be a str, got 5"),
    ],
)
def test_invalidate__invalid_arguments__raises(
    make_cache: MakeCache, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_cache().invalidate(**options)


def test_fetch__invalid_tags__raises(make_cache: MakeCache, source: FakeSource) -> None:
    cache = make_cache()
    with pytest.raises(TypeError, match="tags must be a list of texts, got 'x'"):
        cache.fetch(Q, source, tags="x")
    with pytest.raises(ValueError, match="tags must be at most 20, got 21"):
        cache.fetch(Q, source, tags=["x"] * 21)
    assert source.calls == 0


def test_invalidate__database_fails__raises(
    make_cache: MakeCache, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    cache.fetch(Q, source, tags=["x"])

    def fail(*_: object) -> Any:
        raise DatabaseError("full")

    async def fail_async(*_: object) -> Any:
        raise DatabaseError("full")

    monkeypatch.setattr(cache.cache._core.database, "write", fail)
    monkeypatch.setattr(cache.cache._core.database, "write_async", fail_async)
    with pytest.raises(DatabaseError, match="full"):
        cache.invalidate(tag="x")
    monkeypatch.undo()


@pytest.mark.parametrize("scope", ["params", "user"])
def test_get_many__some_cached__returns_them_in_order(
    make_cache: MakeCache, source: FakeSource, scope: str
) -> None:
    first = make_cache(scope=scope)
    for n in range(3):
        source.value = [n]
        first.fetch({"q": n}, source)
    first.record_cache_fetch_failure("ana", {"q": "failed"})
    cache = make_cache(scope=scope)
    cache.fetch({"q": 1}, source)
    asked = [{"q": 2}, {"q": "none"}, {"q": 1}, {"q": "failed"}, hash_params({"q": 0})[0], {"q": 2}]
    for _ in range(2):
        results = cache.get_many("ana", asked)
        assert [each and each.value for each in results] == [[2], None, [1], None, [0], [2]]
    assert [each and each.source for each in cache.get_many("ana", [{"q": 1}])] == ["memory"]
    assert cache.get_many("ana", []) == []
    others = [] if scope == "user" else [[0]]
    assert [each.value for each in cache.get_many("bob", [{"q": 0}]) if each] == others
    with pytest.raises(ValueError, match="many must be at most 1000 parameters, got 1001"):
        cache.get_many("ana", [Q] * 1001)


def test_get_many__database_fails__serves_memory(
    make_cache: MakeCache, source: FakeSource, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    clock.advance(150)

    def fail(*_: object) -> Any:
        raise DatabaseError("locked")

    async def fail_async(*_: object) -> Any:
        raise DatabaseError("locked")

    monkeypatch.setattr(cache.cache._core.database, "read", fail)
    monkeypatch.setattr(cache.cache._core.database, "read_async", fail_async)
    results = cache.get_many("ana", [Q, {"q": "none"}])
    assert [each and each.freshness for each in results] == ["stale", None]
    monkeypatch.undo()


def test_cached__coroutine_function__is_called_once_for_the_same_arguments(
    database: Database, clock: ManualClock
) -> None:
    calls: list[tuple[str, str]] = []

    async def main() -> None:
        async with HealthCache(database, migrate=False, state="memory://", clock=clock) as cache:

            @cache.cached(fresh=10, stale=20, key="search:{q}", tags=["uf:{uf}"])
            async def search(q: str, uf: str = "SP") -> list[str]:
                """Search."""
                calls.append((q, uf))
                return [q, uf]

            assert search.__doc__ == "Search."
            assert await search("a") == await search(q="a", uf="SP") == ["a", "SP"]
            assert await search("a", "RJ") == ["a", "RJ"]
            assert calls == [("a", "SP"), ("a", "RJ")]
            clock.advance(21)
            assert await search("a") == ["a", "SP"]
            assert len(calls) == 3
            assert await cache.invalidate(tag="uf:SP") == 1
            assert await cache.invalidate(prefix="search:") == 1
            assert await search("a") == ["a", "SP"]
            assert len(calls) == 4

    asyncio.run(main())


def test_cached__plain_function__is_called_once_for_the_same_arguments(
    database: Database, clock: ManualClock
) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", clock=clock).sync
    calls: list[int] = []

    @cache.cached()
    def square(number: int) -> int:
        calls.append(number)
        return number * number

    @cache.cached(fresh=5)
    def double(number: int) -> int:
        calls.append(number)
        return number * 2

    assert [square(3), square(number=3), double(3), double(3)] == [9, 9, 6, 6]
    assert calls == [3, 3]
    with pytest.raises(ValueError, match="params must be JSON serializable"):
        square(object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stale must be"):
        cache.cached(fresh=50, stale=5)
    with pytest.raises(TypeError, match="cached must decorate a function, got 5"):
        cache.cached()(5)  # type: ignore[arg-type]
    cache.close()


def test_cached__methods_of_a_coroutine_function__take_its_arguments(
    database: Database, clock: ManualClock
) -> None:
    calls: list[str] = []

    async def main() -> None:
        async with HealthCache(database, migrate=False, state="memory://", clock=clock) as cache:

            @cache.cached(fresh=10, stale=20)
            async def search(q: str) -> list[str]:
                calls.append(q)
                return [q]

            assert await search.get("a") is None
            assert (await search.fetch("a")).source == "origin"
            found = await search.get(q="a")
            assert found is not None
            assert (found.value, found.freshness) == (["a"], "fresh")
            clock.advance(15)
            found = await search.get("a")
            assert found is not None
            assert found.freshness == "stale"  # by the times of the function
            assert await search.delete("a")
            assert not await search.delete("a")
            assert await search.get("a") is None
            assert calls == ["a"]

    asyncio.run(main())


def test_cached__methods_of_a_plain_function__take_its_arguments(
    database: Database, clock: ManualClock
) -> None:
    cache = HealthCache(database, migrate=False, state="memory://", clock=clock).sync

    @cache.cached()
    def square(number: int) -> int:
        return number * number

    assert square.get(3) is None
    assert square.fetch(3).value == square(3) == 9
    found = square.get(3)
    assert found is not None
    assert found.value == 9
    assert square.delete(3)
    assert not square.delete(3)
    cache.close()
