"""Removes from documents what a public page must not show: users, jobs, searches and clients.

Events are written for operators, who may see everything. The text of a foreign error may contain anything, so
only a few kinds of events keep their whole text. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from comporta.service.dashboard.database_snapshot import JOB_CHARS, KEY_CHARS
from comporta.settings.field_types import without_credentials

_KEY_ACTIONS: Final = ("refresh key", "remove key")
_JOB_ACTIONS: Final = ("retry backfill",)
_CLIENT_KINDS: Final = ("admin_refused", "dashboard_refused")
_OWN_TEXT_KINDS: Final = (
    *("breaker_", "limit_", "retry_", "state_fallback", "state_recovered", "events_dropped", "story"),
    *("admin", "dashboard_refused"),
)
"""Prefixes of event kinds whose whole text is comporta's own, or says why an upstream or store failed."""

_QUERY = re.compile(r"\?[^\s'\"<>()]+")


def redact_event(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as the public may read it."""
    kind, source, text = str(event["kind"]), str(event["source"]), redact_text(str(event["text"]))
    if kind.startswith("batch_"):
        source, text = source[:JOB_CHARS], _own_text(text)
    elif kind in _CLIENT_KINDS:
        source = "a client"
    elif kind == "admin" and text.startswith(_KEY_ACTIONS):
        source, text = source[:KEY_CHARS], " ".join(text.split()[:2])
    elif kind == "admin" and text.startswith(_JOB_ACTIONS):
        source = source[:JOB_CHARS]
    elif kind == "state_key_unusable":  # the text contains the key, which may name a user
        text = "a key has an unexpected type; its local share applies"
    elif not kind.startswith(_OWN_TEXT_KINDS):
        text = _own_text(text)
    return {**event, "source": redact_text(source), "text": text}


def redact_upstream(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of an upstream as the public may read it: its failures may contain queries."""
    return {
        **summary,
        "reason": redact_text(summary["reason"]),
        "in_words": redact_text(summary["in_words"]),
        "last_failures": [
            {**failure, "text": redact_text(failure["text"])} for failure in summary["last_failures"]
        ],
    }


def redact_text(text: str) -> str:
    """Return a text without credentials and without the query strings of URLs."""
    return _QUERY.sub("?…", without_credentials(text))


def _own_text(text: str) -> str:
    """Return comporta's own part of a text, without the message of the foreign error that follows it."""
    return text.partition(":")[0].partition("(")[0].strip()
