"""What a limit, a breaker, an upstream may be called: names stand in keys, variables, files and log lines."""

from __future__ import annotations

import re

NAMES_ALLOWED = "1 to 100 of A-Z a-z 0-9 _ . -"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def is_name(text: str) -> bool:
    """Whether something may be called so."""
    return _NAME.fullmatch(text) is not None


def checked_name(name: str) -> str:
    """Return a name that may be one; a ``ValueError`` says what is allowed."""
    if not is_name(name):
        raise ValueError(f"name must be {NAMES_ALLOWED}, got {name!r:.120}")
    return name
