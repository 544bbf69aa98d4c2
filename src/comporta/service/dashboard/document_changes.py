"""Computes what changed between two documents, so that a page need not get all of a large fleet. Pure.

Upstreams and workers are compared by name and field, the latest slots by their numbers, events by how many
are new; any other part that changed is sent as a whole. ``page/changes.js`` applies the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

NAMED: Final = ("upstreams", "workers")
SERIES: Final = "recent"
EVENTS: Final = "events"

Columns = Mapping[str, Sequence[Any]]
"""The slots of a series: one list for each column."""


def document_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that turn ``before`` into ``after``, which have the same members.

    ``parts`` replace parts of the document. ``named`` has the order of a list, if it changed, and the changed
    fields of its items by name. ``series`` are changed slots. ``events`` has the new ones, and how many of
    the known ones remain.
    """
    changes: dict[str, Any] = {"parts": {}, "named": {}, "series": {}, "events": None}
    for part, value in after.items():
        known = before.get(part)
        if value == known:
            continue
        if part in NAMED and isinstance(known, list) and isinstance(value, list):
            changes["named"][part] = _item_changes(known, value)
        elif part == SERIES and isinstance(known, dict):
            slots = {name: _changed_slots(known.get(name, {}), columns) for name, columns in value.items()}
            changes["series"] = {name: columns for name, columns in slots.items() if columns["slots"]}
        elif part == EVENTS and isinstance(known, list) and isinstance(value, list):
            changes["events"] = _event_changes(known, value)
        else:
            changes["parts"][part] = value
    return changes


def _changed_slots(before: Columns, after: Columns) -> dict[str, list[Any]]:
    """Return the columns of a series with only the slots that changed.

    The start of a slot is not compared: it is its age at the time of reading, so it differs every time.
    """
    known = _slots_by_number(before)
    changed = [
        index
        for index, (number, slot) in enumerate(_slots_by_number(after).items())
        if known.get(number) != slot
    ]
    return {name: [column[index] for index in changed] for name, column in after.items()}


def _slots_by_number(columns: Columns) -> dict[int, tuple[Any, ...]]:
    names = [name for name in columns if name != "starts"]
    slots = zip(*(columns[name] for name in names), strict=True)
    return dict(zip(columns.get("slots", ()), slots, strict=True))


def _item_changes(before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = {item["name"]: item for item in before}
    items = {item["name"]: _changed_fields(known.get(item["name"], {}), item) for item in after}
    names = [item["name"] for item in after]
    is_same_order = names == [item["name"] for item in before]
    return {
        "names": None if is_same_order else names,
        "items": {name: fields for name, fields in items.items() if fields},
    }


def _changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in after.items() if field not in before or before[field] != value}


def _event_changes(before: Sequence[Any], after: Sequence[Any]) -> dict[str, Any]:
    """Return the events at the beginning that are new, and how many of the known ones follow."""
    for count in range(len(after)):
        remaining = len(after) - count
        if after[count:] == before[:remaining]:
            return {"new": after[:count], "remaining": remaining}
    return {"new": after, "remaining": 0}
