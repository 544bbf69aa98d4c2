"""Parameters: equal mappings have the same hash, and invalid ones raise."""

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

from comporta.cache import serialization
from comporta.cache.params import check_hash, check_user, hash_params

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\u00e9"), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.unmeasured
@given(st.dictionaries(st.text("abcd"), values, max_size=5))
def test_hash_params__any_params__hashes_their_canonical_json(params: dict[str, Any]) -> None:
    text = json.dumps(params, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    name, written = hash_params(params)
    assert json.loads(written) == json.loads(text)
    assert name == hashlib.sha256(written).hexdigest() == check_hash(name)
    assert hash_params(dict(reversed(params.items()))) == (name, written)


def test_hash_params__other_mapping_type__gives_the_same_hash() -> None:
    assert hash_params(MappingProxyType({"b": 1, "a": None})) == hash_params({"a": None, "b": 1})


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ([1], TypeError, r"params must be a mapping, got \[1\]"),
        ({"a": object}, ValueError, "params must be JSON serializable"),
        (
            {"a": [{"b": float("nan")}]},
            ValueError,
            r"params.a\[0\].b must be a finite number, got nan",
        ),
        ({"a": (float("inf"),)}, ValueError, r"params.a\[0\] must be a finite number, got inf"),
        ({"a": "x" * 70_000}, ValueError, "params must be at most 65536 bytes as JSON, got 70008"),
    ],
)
def test_hash_params__invalid_params__raises_with_the_value(
    params: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hash_params(params)


@pytest.mark.parametrize("name", ["", "x", "A" * 64, 3])
def test_check_hash__invalid__raises_with_the_value(name: Any) -> None:
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        check_hash(name)


@pytest.mark.parametrize(
    ("user", "error"), [("", ValueError), ("a\nb", ValueError), ("x" * 201, ValueError), (7, TypeError)]
)
def test_check_user__invalid__raises_with_the_value(user: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="user_id must be"):
        check_user(user)


def test_serialization__no_msgspec__names_the_extra() -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None; from comporta.cache import params; params.hash_params({})"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: the cache needs msgspec: pip install 'comporta[cache]'" in ran.stderr


def test_json__decoder_and_encoder_created_again__agree() -> None:
    serialization.json_decoder.cache_clear()
    serialization._canonical_encode.cache_clear()
    value = {"b": [1, 2.5, None], "a": "é"}
    text = serialization.canonical_json(value)
    assert text == '{"a":"é","b":[1,2.5,null]}'.encode()
    assert serialization.json_decoder()(text) == value
