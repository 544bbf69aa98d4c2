"""The events of the fleet's journal: how they are written, and what readers make of them. Pure.

Every worker reports what it notices, so the same event may be there several times; ``merge_events`` makes one
of them. An action of an operator is one event with the name of who did it, however it was done: through the
service or by a program that changed the store itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from comporta.breaker.admission import worker_name
from comporta.fleet.validation import parse_event
from comporta.stores.journal import ENTRY_BYTES_MAX

if TYPE_CHECKING:
    from comporta.events import Event

JOURNAL: Final = "events"

ADMIN: Final = "admin"
"""The kind of events that are actions of operators."""

RESET_BREAKER: Final = "reset breaker"
"""The action whose consequence may be that a circuit closes."""

_CONSEQUENCES = ("breaker_forced", "limit_paused", "limit_resumed")
_SAME_EVENT_SECONDS = 3.0
"""The same event from several workers within this time is shown as one."""


def action_text(action: str, detail: str, actor: str) -> str:
    """Return the text of the event for an action, which names who did it: a token or a user."""
    return f"{action} {detail}".strip() + f" (by {actor})"


def encode_event(event: Event) -> bytes:
    """Return an event as a journal entry; texts that are too long are truncated."""
    fields = {**event._asdict(), "at": round(event.at, 3), "worker": worker_name()}
    entry = encode_json(fields)
    while len(entry) > ENTRY_BYTES_MAX:
        longest = max(("text", "source", "kind"), key=lambda field: len(fields[field]))
        fields[longest] = fields[longest][: len(fields[longest]) // 2]
        entry = encode_json(fields)
    return entry


def merge_events(entries: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the events of a journal, the newest first; the same event from several workers becomes one.

    ``workers`` is how many workers reported it, ``worker`` the first of them. Identical entries count once,
    because a worker sends its events again if the store fails meanwhile. Each action of an operator is one
    event, together with what the workers notice of it.
    """
    merged: list[dict[str, Any]] = []
    latest: dict[tuple[str, str], tuple[dict[str, Any], set[str]]] = {}
    parsed = [
        {**event, "workers": 1} for event in map(parse_event, dict.fromkeys(entries)) if event is not None
    ]
    for event in sorted(parsed, key=lambda event: event["at"]):
        action, _ = latest.get((ADMIN, event["source"]), (None, None))
        if action is not None and _is_consequence(event, action):
            if event["severity"] != "info":
                action["severity"] = event["severity"]  # what the workers notice of it is no second entry
            continue
        subject = event["kind"], event["source"]
        same, workers = latest.get(subject, (event, set()))
        is_near = event["at"] - same["at"] <= _SAME_EVENT_SECONDS and event["kind"] != ADMIN
        if workers and event["worker"] not in workers and is_near:
            workers.add(event["worker"])
            same["workers"] = len(workers)
            continue
        latest[subject] = (event, {event["worker"]})
        merged.append(event)
    return merged[::-1]


def encode_json(value: Mapping[str, Any]) -> bytes:
    """Return compact JSON for a record or an entry."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _is_consequence(event: Mapping[str, Any], action: Mapping[str, Any]) -> bool:
    """Whether an event is what workers notice of an operator's action."""
    if event["at"] - action["at"] > _SAME_EVENT_SECONDS:
        return False
    is_closing = event["kind"] == "breaker_closed" and action["text"].startswith(RESET_BREAKER)
    return is_closing or event["kind"] in _CONSEQUENCES
