"""Keys of limits."""

from __future__ import annotations

from enum import Enum
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.support import StoreFactory, memory_store, shared_store

from comporta import BaseLimiter, LimitKey
from comporta.limits.key import normalize_key, printable_text

parts = st.text(min_size=1, max_size=60)


@pytest.mark.unmeasured
@given(parts, parts, st.none() | parts)
def test_limit_key__any_parts__round_trip(namespace: str, key: str, version: str | None) -> None:
    made = LimitKey(namespace, key, version)
    read = LimitKey.from_str(str(made))
    assert (read.namespace, read.key, read.version) == (namespace, key, version)
    assert read == made
    assert hash(read) == hash(made)


@pytest.mark.parametrize(
    "key", ["a:b", "{}", "line\nbreak", "nul\0", "🚪", "%3A", "%", "x" * 10_240, ":", "a%3Ab:%25"]
)
def test_limit_key__special_characters__round_trip(key: str) -> None:
    assert LimitKey.from_str(str(LimitKey("ns", key))).key == key


def test_limit_key__plain__is_namespace_key_version() -> None:
    assert str(LimitKey("test", "token1", "v1")) == "test:token1:v1"
    assert str(LimitKey("test", "token1")) == "test:token1"
    assert repr(LimitKey("a", "b", "c")) == "LimitKey('a', 'b', 'c')"
    assert repr(LimitKey("a", "b")) == "LimitKey('a', 'b')"
    assert LimitKey("a", "b") != "a:b"


@pytest.mark.parametrize(
    ("field", "given"), [("namespace", ("", "k")), ("key", ("n", "")), ("version", ("n", "k", ""))]
)
def test_limit_key__empty_part__is_refused_naming_it(field: str, given: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} must not be empty"):
        LimitKey(*given)


@pytest.mark.parametrize("text", ["", "alone", "a:b:c:d", ":b", "a:"])
def test_from_str__invalid_text__is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must"):
        LimitKey.from_str(text)


@pytest.mark.parametrize("key", [b"bytes", 5, ["list"], object()])
def test_limit_key__wrong_type__is_a_type_error(key: Any) -> None:
    with pytest.raises(TypeError):
        BaseLimiter("10/s").sync.acquire(key)
    with pytest.raises(TypeError):
        LimitKey("n", key)
    with pytest.raises(TypeError):
        LimitKey.from_str(key)


def test_limiter__empty_key__is_refused() -> None:
    with pytest.raises(ValueError, match="key must not be empty"):
        BaseLimiter("10/s").sync.acquire("")


def test_limiter__limit_key_and_its_text__share_one_limit() -> None:
    limiter = BaseLimiter("2/hour").sync
    assert [limiter.acquire(key) for key in (LimitKey("a", "b"), "a:b", LimitKey("a", "b"))] == [
        True,
        True,
        False,
    ]


class Words(str, Enum):  # noqa: UP042 - this older form is under test
    """Keys as an enumeration; unlike ``StrEnum`` this prints as ``Words.A``."""

    A = "a"


@pytest.mark.parametrize("makes", [memory_store, shared_store])
def test_limiter__enum_member_as_key__uses_its_text(makes: StoreFactory) -> None:
    with makes(None) as store:
        limiter = BaseLimiter("5/hour", store).sync
        assert limiter.acquire(Words.A) is True
        assert limiter.acquire("a") is True
        assert limiter.peek(Words.A).remaining == limiter.peek("a").remaining == 3
    assert str(LimitKey("n", Words.A)) == "n:a"


def test_normalize_key__long_or_like_a_digest__is_digested() -> None:
    long = normalize_key("x" * 10_000)
    assert len(long) == 41
    assert normalize_key("x" * 10_001) != long
    assert normalize_key(long) != long
    assert normalize_key("x" * 200) == "x" * 200
    assert normalize_key(None) == ""
    assert normalize_key("\ud800" * 300).startswith("~")


@pytest.mark.parametrize("key", ["plain", None, LimitKey("a", "b"), "k" * 10_240, "~tilde", "\ud800"])
@pytest.mark.parametrize("makes", [memory_store, shared_store])
def test_limiter__any_key__is_one_limit_for_every_method(makes: StoreFactory, key: Any) -> None:
    with makes(None) as store:
        limiter = BaseLimiter("5/hour", store).sync
        assert limiter.acquire(key) is True
        assert limiter.acquire(key, 2) is True
        assert limiter.acquire(key, timeout=0.01) is True
        assert limiter.decide(key).remaining == 0
        assert limiter.acquire(key) is False
        assert limiter.acquire(key, timeout=0.01) is False


def test_printable_text__control_characters_and_length__are_bounded() -> None:
    assert printable_text("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert len(printable_text("x" * 10_000)) == 128
