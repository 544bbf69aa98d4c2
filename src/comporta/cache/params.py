"""Parameters as canonical JSON, and as a hash that is the same in every worker.

Equal mappings have the same JSON: sorted keys, no spaces. The hash is its SHA-256.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, Final

from comporta.cache.serialization import canonical_json, decode_json
from comporta.validators import require_text

PARAMS_BYTES_MAX: Final = 65_536
USER_CHARS_MAX: Final = 200

SHARED_USER: Final = "shared"
"""The ``user_id`` of rows that were stored without one."""

RECENT_MAX: Final = 10_000
RECENT_BYTES_MAX: Final = 1024
"""How many hashes of recent parameters a process remembers, and the largest parameters among them: 12 MB."""

_is_hash = re.compile(r"[0-9a-f]{64}").fullmatch
_DEPTH_MAX = 50


def hash_params(params: Mapping[str, Any], prefix: bytes = b"") -> tuple[str, bytes]:
    """Return the hash of parameters and their JSON; ``prefix`` separates the keys of other caches."""
    if type(params) is not dict:
        if not isinstance(params, Mapping):
            raise TypeError(f"params must be a mapping, got {params!r:.100}")
        params = dict(params)
    try:
        text = canonical_json(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"params must be JSON serializable ({error}), got {params!r:.100}") from None
    if len(text) > PARAMS_BYTES_MAX:
        raise ValueError(f"params must be at most {PARAMS_BYTES_MAX} bytes as JSON, got {len(text)}")
    if b"null" in text:  # msgspec writes infinity and nan as null, too
        _check_finite("params", params)
    return (_recent_hash if len(text) <= RECENT_BYTES_MAX else _hash)(prefix + text), text


def _hash(text: bytes) -> str:
    from hashlib import sha256  # noqa: PLC0415 - takes 3 ms, and only a cache needs it

    return sha256(text).hexdigest()


_recent_hash = lru_cache(RECENT_MAX)(_hash)


def decode_params(text: bytes) -> dict[str, Any]:
    """Return the parameters in a JSON text; raise if it is not valid JSON, or not an object."""
    params = decode_json(text)
    if not isinstance(params, dict):
        raise ValueError(f"params must be a JSON object, got {params!r:.100}")
    return params


def check_hash(params_hash: Any) -> str:
    """Return a hash of parameters; raise ``ValueError`` if it is not one."""
    if not isinstance(params_hash, str) or not _is_hash(params_hash):
        raise ValueError(f"params_hash must be 64 digits of 0-9 a-f, got {params_hash!r:.100}")
    return params_hash


def check_user(user_id: Any) -> str:
    """Return a user id; raise if it is not a string of 1 to 200 printable characters."""
    return require_text("user_id", user_id, USER_CHARS_MAX)


def _check_finite(where: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{where} must be a finite number, got {value}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(f"{where}.{key}", item, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEPTH_MAX:
        for number, item in enumerate(value):
            _check_finite(f"{where}[{number}]", item, depth + 1)
