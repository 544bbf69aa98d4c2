"""Values as JSON, by msgspec; never by anything that could run what it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

VALUE_BYTES_MAX = 64 * 1024 * 1024
"""What is longer is served, and not kept."""


@cache
def _json() -> Any:
    try:
        from msgspec import json  # noqa: PLC0415 - an extra
    except ImportError:
        raise ImportError("the cache needs msgspec: pip install 'comporta[cache]'") from None
    return json


@cache
def _canonical_encode() -> Any:
    return _json().Encoder(order="deterministic").encode


@cache
def decoder() -> Callable[[bytes], Any]:
    """Return what reads a JSON text, for those who read many."""
    decode: Callable[[bytes], Any] = _json().Decoder().decode
    return decode


def canonical(value: Any) -> bytes:
    """Return the one text of a value: keys in order."""
    text: bytes = _canonical_encode()(value)
    return text


def encoded(value: Any) -> bytes:
    """Return a value as JSON; what JSON cannot say is an error that shows it."""
    try:
        text: bytes = _json().encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a value to keep must be what JSON can say ({error}), got {value!r:.100}") from None
    return text


def decoded(text: bytes) -> Any:
    """Return what a JSON text says."""
    return _json().decode(text)
