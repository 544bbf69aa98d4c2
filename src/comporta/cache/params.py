"""What was asked for, as one text and one short name that is the same on every worker.

Two mappings that say the same have the same text: keys in order, no spaces. The name is the SHA-256 of that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from comporta.cache.body import canonical

PARAMS_BYTES_MAX: Final = 65_536
USER_CHARS_MAX: Final = 200

_is_hash = re.compile(r"[0-9a-f]{64}").fullmatch
_DEPTH_MAX = 50


def hashed(params: Mapping[str, Any], prefix: bytes = b"") -> tuple[str, bytes]:
    """Return the name of some parameters, and their text; ``prefix`` keeps apart what is asked elsewhere."""
    if type(params) is not dict:
        if not isinstance(params, Mapping):
            raise TypeError(f"params must be a mapping, got {params!r:.100}")
        params = dict(params)
    try:
        text = canonical(params)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"params must be what JSON can say ({error}), got {params!r:.100}") from None
    if len(text) > PARAMS_BYTES_MAX:
        raise ValueError(f"params must be at most {PARAMS_BYTES_MAX} bytes as JSON, got {len(text)}")
    if b"null" in text:  # which is also what becomes of a number that JSON has no word for
        _check_finite("params", params)
    from hashlib import sha256  # noqa: PLC0415 - 3 ms that only a cache needs

    return sha256(prefix + text).hexdigest(), text


def check_hash(params_hash: Any) -> str:
    """Return the name of some parameters if it can be one."""
    if not isinstance(params_hash, str) or not _is_hash(params_hash):
        raise ValueError(f"params_hash must be 64 digits of 0-9 a-f, got {params_hash!r:.100}")
    return params_hash


def check_user(user_id: Any) -> str:
    """Return a user's id if it can be one."""
    if not isinstance(user_id, str):
        raise TypeError(f"user_id must be a str, got {user_id!r:.100}")
    if not 1 <= len(user_id) <= USER_CHARS_MAX or not user_id.isprintable():
        raise ValueError(f"user_id must be 1 to {USER_CHARS_MAX} printable characters, got {user_id!r:.250}")
    return user_id


def _check_finite(where: str, value: Any, depth: int = 0) -> None:
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{where} must be a number that JSON can say, got {value}")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_finite(f"{where}.{key}", item, depth + 1)
    elif isinstance(value, list | tuple) and depth < _DEPTH_MAX:
        for number, item in enumerate(value):
            _check_finite(f"{where}[{number}]", item, depth + 1)
