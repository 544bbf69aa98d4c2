"""Values as JSON, through msgspec. Never a format that could execute code when it is read, such as pickle."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

VALUE_BYTES_MAX = 64 * 1024 * 1024
"""A longer value is served to its caller but not stored."""


@cache
def _msgspec_json() -> Any:
    try:
        from msgspec import json  # noqa: PLC0415 - an extra
    except ImportError:
        raise ImportError("the cache needs msgspec: pip install 'comporta[cache]'") from None
    return json


@cache
def _canonical_encode() -> Any:
    return _msgspec_json().Encoder(order="deterministic").encode


@cache
def json_decoder() -> Callable[[bytes | str], Any]:
    """Return the function that decodes JSON, for callers that decode often."""
    decode: Callable[[bytes | str], Any] = _msgspec_json().Decoder().decode
    return decode


def canonical_json(value: Any) -> bytes:
    """Return the JSON of a value with sorted keys and no spaces."""
    text: bytes = _canonical_encode()(value)
    return text


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; raise ``TypeError`` if it is not serializable."""
    try:
        text: bytes = _msgspec_json().encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a cached value must be JSON serializable ({error}), got {value!r:.100}") from None
    return text


def decode_json(text: bytes | str) -> Any:
    """Return the value of a JSON text."""
    return _msgspec_json().decode(text)


@lru_cache(1024)
def decode_sources(text: bytes | str | None) -> tuple[str, ...]:
    """Return source names, or none if another program wrote something else. Cached, because they repeat."""
    try:
        sources = _msgspec_json().decode(text) if text else ()
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, sources)) if isinstance(sources, list) else ()
