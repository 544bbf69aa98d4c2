"""The rule for names of limits, breakers and upstreams, which appear in keys, files and log lines."""

from __future__ import annotations

import re

NAME_RULE = "1 to 100 of A-Z a-z 0-9 _ . -"

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def is_valid_name(text: str) -> bool:
    """Return whether ``text`` is a valid name."""
    return _NAME.fullmatch(text) is not None


def validate_name(name: str) -> str:
    """Return ``name`` if it is valid; raise a ``ValueError`` that states the rule otherwise."""
    if not is_valid_name(name):
        raise ValueError(f"name must be {NAME_RULE}, got {name!r:.120}")
    return name
