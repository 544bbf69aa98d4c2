"""What a page that anybody may open does not say: whose job, whose search, who tried.

Events are written for the log, and operators may know all of it. What somebody else's error says may be
anything: only of a few kinds of events is the whole text our own. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from comporta.service.dashboard.kept import JOB_CHARS, KEY_CHARS
from comporta.settings.kinds import hidden

_OF_KEYS: Final = ("refresh key", "remove key")
_OF_JOBS: Final = ("retry backfill",)
_OF_CLIENTS: Final = ("admin_refused", "dashboard_refused")
_OURS: Final = (
    *("breaker_", "limit_", "retry_", "state_fallback", "state_return", "events_left_out", "story"),
    *("admin", "dashboard_refused"),
)
"""How the kinds begin of which the text is ours to its end, or says why an upstream or the state is gone."""

_QUERY = re.compile(r"\?[^\s'\"<>()]+")


def discreet(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as everybody may read it."""
    kind, source, text = str(event["kind"]), str(event["source"]), plain(str(event["text"]))
    if kind.startswith("batch_"):
        source, text = source[:JOB_CHARS], _ours(text)
    elif kind in _OF_CLIENTS:
        source = "somebody"
    elif kind == "admin" and text.startswith(_OF_KEYS):
        source, text = source[:KEY_CHARS], " ".join(text.split()[:2])
    elif kind == "admin" and text.startswith(_OF_JOBS):
        source = source[:JOB_CHARS]
    elif kind == "state_key_unusable":  # whose key it is stands in it
        text = "a key holds something else; it goes by the local share"
    elif not kind.startswith(_OURS):
        text = _ours(text)
    return {**event, "source": plain(source), "text": text}


def of_upstream(shown: dict[str, Any]) -> dict[str, Any]:
    """Return a card as everybody may read it: the last failure may tell what was asked for."""
    return {**shown, "why": plain(shown["why"]), "in_words": plain(shown["in_words"])}


def plain(text: str) -> str:
    """Return a text without passwords, and without what was asked for at an address."""
    return _QUERY.sub("?…", hidden(text))


def _ours(text: str) -> str:
    """Return what we say of an error, without what it says itself."""
    return text.partition(":")[0].partition("(")[0].strip()
