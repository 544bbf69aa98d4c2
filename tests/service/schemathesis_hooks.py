"""Hooks for schemathesis: relations between two fields, which a JSON schema cannot express.

A search has at most 31 days, the last of them not before the first, and removing a key needs its hash a
second time. Without the hooks almost every valid request would be rejected for these reasons, and the rest of
the route would not be reached. Invalid requests are sent as they are.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import schemathesis

DAYS_MAX = 31


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Relate the fields of a valid request."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    query, path = case.query or {}, case.path_parameters or {}
    if {"date_from", "date_to"} <= set(query):
        query["date_to"] = _last_day(query["date_from"], query["date_to"])
    if {"confirm", "user"} <= set(query) and "params_hash" in path:
        query["confirm"] = path["params_hash"]


def _last_day(first: str, last: str) -> str:
    """Return a day at most a month after the first one."""
    from_day, to_day = date.fromisoformat(first), date.fromisoformat(last)
    days = abs((to_day - from_day).days) % DAYS_MAX
    return (from_day + timedelta(min(days, (date.max - from_day).days))).isoformat()
