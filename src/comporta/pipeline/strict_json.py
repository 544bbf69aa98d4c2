"""JSON that every reader takes. Pure.

Python writes ``NaN`` and ``Infinity``, which JSON does not have, and most others stop reading there. What
is no number of JSON's is written as text: ``"nan"``, ``"inf"``, ``"-inf"``.
"""

from __future__ import annotations

import json
from typing import Any


def dumped(value: Any, **options: Any) -> str:
    """Return a value as JSON; the options are those of ``json.dumps``."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # or it holds itself, which is an error again
        return json.dumps(_told(value), allow_nan=False, **options)


def _told(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {_told(name): _told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    return value
