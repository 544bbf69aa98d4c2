"""JSON that every reader accepts. Pure.

Python writes ``NaN`` and ``Infinity``, which are not JSON, and most other programs fail to read them. This
module writes them as strings: ``"nan"``, ``"inf"``, ``"-inf"``.
"""

from __future__ import annotations

import json
from typing import Any


def dump_json(value: Any, **options: Any) -> str:
    """Return a value as JSON; ``options`` are those of ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # or it contains itself, which raises again
        return json.dumps(_json_compatible(value), allow_nan=False, **options)


def _json_compatible(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {_json_compatible(name): _json_compatible(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_compatible(each) for each in value]
    return value
