"""Rows that another program wrote or an operator edited: they are misses, never errors."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cache.conftest import MakeCache
from tests.cache.harness import CacheHarness, FakeSource

from comporta import Loaded
from comporta.cache.queries import decode_column
from comporta.database.base import Database, Statement
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"q": "x"}
TOO_DEEP = "[" * 200_000 + "]" * 200_000  # for every Python: from 3.13 on the stack is the limit
LONE_SURROGATE = '"\\ud800"'
TOO_LARGE = "[1e999]"


def edit(database: Database, assignment: str, where: str = "TRUE", **parameters: Any) -> None:
    text = f"UPDATE search_results_cache SET {assignment} WHERE {where}"  # noqa: S608 - a test's own text
    database.write([Statement(text)], parameters)


def broken_texts(database: Database) -> list[str]:
    """Return texts that the database accepts and the cache cannot decode; PostgreSQL validates JSON."""
    invalid = [TOO_DEEP, '{"broken', "", "\x00"] if database.dialect == "sqlite" else []
    return [LONE_SURROGATE, TOO_LARGE, *invalid]


def unreadable_events() -> list[str]:
    return [event.text for event in latest_events() if "could not decode the row" in event.text]


def refresh(cache: CacheHarness) -> tuple[int, list[Any]]:
    asked: list[Any] = []

    def load(params: dict[str, Any]) -> list[str]:
        asked.append(params)
        return ["refreshed"]

    return cache.refresh_due(load), asked


@pytest.mark.unmeasured
@pytest.mark.parametrize("scope", ["params", "user"])
def test_fetch__body_cannot_be_decoded__is_a_miss_with_an_event(
    make_cache: MakeCache, source: FakeSource, database: Database, scope: str
) -> None:
    for number, text in enumerate(broken_texts(database), 2):
        make_cache(scope=scope).fetch(Q, source)
        edit(database, "results = JSON(:text)", text=text)
        cache = make_cache(scope=scope)
        assert cache.get_from_cache("ana", Q) is None
        assert unreadable_events()
        source.value = [number]
        assert cache.fetch(Q, source).value == [number]
        assert source.calls == number
        assert make_cache(scope=scope).fetch(Q, source).value == [number]


def test_fetch__another_users_row_cannot_be_decoded__own_result_is_read_from_then_on(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    make_cache().fetch(Q, source, user="bob")
    edit(database, "results = JSON(:text)", text=LONE_SURROGATE)
    clock.advance(1)
    assert make_cache().fetch(Q, source).source == "origin"
    assert make_cache().fetch(Q, source).source == "database"


def test_fetch__sources_cannot_be_decoded__is_served_without_them(
    make_cache: MakeCache, database: Database
) -> None:
    make_cache().fetch(Q, lambda: Loaded(["a"], sources=["pncp"]))
    for text in ("5", '{"a": 1}', "null", *(["{broken"] if database.dialect == "sqlite" else [])):
        edit(database, "sources_json = JSON(:text)", text=text)
        cached = make_cache().get_from_cache("ana", Q)
        assert (cached.value, cached.sources) == (["a"], ())


def test_refresh_due__parameters_cannot_be_decoded__skips_the_row(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    names = [cache.fetch({"q": n}, source).params_hash for n in range(2)]
    for text in ("[1]", *broken_texts(database)):
        edit(database, "search_params = JSON(:text)", "params_hash = :name", text=text, name=names[0])
        edit(database, "due_at = AT(:now)", now=0.0)
        assert refresh(cache) == (1, [{"q": 1}])
    assert unreadable_events()


def test_refresh_due__body_cannot_be_decoded__refreshes_the_row(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    edit(database, "results = JSON(:text), due_at = AT(:now)", text=LONE_SURROGATE, now=0.0)
    assert refresh(cache) == (1, [Q])
    assert make_cache().fetch(Q, source).value == ["refreshed"]


def test_refresh_due__user_id_is_invalid__skips_the_row(
    make_cache: MakeCache, source: FakeSource, database: Database
) -> None:
    cache = make_cache()
    cache.fetch(Q, source)
    edit(database, "user_id = :user, due_at = AT(:now)", user="a\nb", now=0.0)
    assert refresh(cache) == (0, [])
    assert unreadable_events()


@pytest.mark.unmeasured
@pytest.mark.parametrize("seconds", [61, 3600, 100 * 365 * 86_400])
def test_fetch__fetched_at_lies_ahead__is_stale_and_refreshed(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock, seconds: int
) -> None:
    make_cache().fetch(Q, source, user="bob")
    clock.advance(60)
    edit(database, "fetched_at = AT(:at)", at=clock.now_ns() / 1e9 + seconds)
    source.value = ["new"]
    cache = make_cache()
    assert cache.fetch(Q, source).freshness == "stale"
    cache.settle()
    result = make_cache().fetch(Q, source)
    assert (result.value, result.freshness, source.calls) == (["new"], "fresh", 2)


def test_fetch__fetched_at_is_less_than_a_minute_ahead__is_fresh(
    make_cache: MakeCache, source: FakeSource, database: Database, clock: ManualClock
) -> None:
    make_cache().fetch(Q, source)
    edit(database, "fetched_at = AT(:at)", at=clock.now_ns() / 1e9 + 59)
    result = make_cache().fetch(Q, source)
    assert (result.freshness, result.age) == ("fresh", 0.0)


def test_fetch__timestamp_is_no_number__is_a_miss(make_cache: MakeCache, database: Database) -> None:
    partial = Loaded(["a"], {"succeeded_ufs": ["SP"], "failed_ufs": ["RJ"], "total_requested": 2})
    texts = {"sqlite": "'yesterday'", "postgresql": "CAST('-infinity' AS timestamptz)"}
    make_cache().fetch(Q, lambda: partial)
    edit(database, f"fetched_at = {texts[database.dialect]}")
    assert make_cache().fetch(Q, lambda: partial).source == "origin"
    edit(database, f"last_success_at = {texts[database.dialect]}")
    want = "origin" if database.dialect == "sqlite" else "database"
    assert make_cache().fetch(Q, lambda: partial).source == want
    ends = {"sqlite": "9e999", "postgresql": "CAST('infinity' AS timestamptz)"}
    edit(database, f"last_success_at = {ends[database.dialect]}")
    assert make_cache().fetch(Q, lambda: partial).source == "database"


def test_decode_column__broken_json__is_its_text() -> None:
    texts = [None, b'{"a": [1]}', b'{"a"', b"\xff", TOO_DEEP.encode()]
    assert [decode_column(text) for text in texts] == [
        None,
        {"a": [1]},
        '{"a"',
        "\ufffd",
        TOO_DEEP,
    ]
