"""Parameters: one name for all who say the same, and a clear word about what is none."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from comporta.cache.params import check_hash, check_user, hashed

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\u00e9"), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abcd"), values, max_size=5))
def test_hash__any_params__is_that_of_their_json_in_order(params: dict[str, Any]) -> None:
    text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    name, written = hashed(params)
    assert json.loads(written) == json.loads(text)
    assert name == hashlib.sha256(written).hexdigest() == check_hash(name)
    assert hashed(dict(reversed(params.items()))) == (name, written)


def test_hash__another_kind_of_mapping__is_the_same() -> None:
    assert hashed(MappingProxyType({"b": 1, "a": None})) == hashed({"a": None, "b": 1})


@pytest.mark.parametrize(
    ("params", "error", "said"),
    [
        ([1], TypeError, r"params must be a mapping, got \[1\]"),
        ({"a": object}, ValueError, "params must be what JSON can say"),
        (
            {"a": [{"b": float("nan")}]},
            ValueError,
            r"params.a\[0\].b must be a number that JSON can say, got nan",
        ),
        ({"a": (float("inf"),)}, ValueError, r"params.a\[0\] must be a number that JSON can say, got inf"),
        ({"a": "x" * 70_000}, ValueError, "params must be at most 65536 bytes as JSON, got 70008"),
    ],
)
def test_hash__malformed_params__are_named(params: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        hashed(params)


@pytest.mark.parametrize("name", ["", "x", "A" * 64, 3])
def test_check_hash__what_is_none__is_named(name: Any) -> None:
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        check_hash(name)


@pytest.mark.parametrize(
    ("user", "error"), [("", ValueError), ("a\nb", ValueError), ("x" * 201, ValueError), (7, TypeError)]
)
def test_check_user__who_is_none__is_named(user: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="user_id must be"):
        check_user(user)


def test_body__no_msgspec__says_which_extra() -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None; from comporta.cache.params import hashed; hashed({})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: the cache needs msgspec: pip install 'comporta[cache]'" in ran.stderr
