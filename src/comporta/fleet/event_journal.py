"""Encodes the events of the fleet's journal, and merges them for readers. Pure.

Every worker reports what it notices, so the journal may hold the same event several times; ``merge_events``
turns these into one. An action of an operator is one event that names the operator, whether it was done
through the service or by a program that changed the store directly.
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
    """Return the text of the event for an action; ``actor`` is the token or the user that did it."""
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
    because a worker sends its events again if the store fails meanwhile. Each action of an operator and the
    events that it causes in workers become one event.
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
                action["severity"] = event["severity"]  # its effect in a worker is not another entry
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
    """Whether an event of a worker is the effect of an operator's action."""
    if event["at"] - action["at"] > _SAME_EVENT_SECONDS:
        return False
    is_closing = event["kind"] == "breaker_closed" and action["text"].startswith(RESET_BREAKER)
    return is_closing or event["kind"] in _CONSEQUENCES
