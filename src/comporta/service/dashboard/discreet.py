"""What a page that anybody may open does not say: whose job, whose search, who tried.

Events are written for the log, and operators may know all of it. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from comporta.service.dashboard.kept import JOB_CHARS, KEY_CHARS
from comporta.settings.kinds import hidden

_OF_KEYS: Final = ("refresh key", "remove key")
_OF_JOBS: Final = ("retry backfill",)
_OF_CLIENTS: Final = ("admin_refused", "dashboard_refused")


def discreet(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event as everybody may read it."""
    kind, source, text = str(event["kind"]), str(event["source"]), hidden(str(event["text"]))
    if kind.startswith("batch_"):
        source, text = source[:JOB_CHARS], text.partition(":")[0]
    elif kind in _OF_CLIENTS:
        source = "somebody"
    elif kind == "admin" and text.startswith(_OF_KEYS):
        source, text = source[:KEY_CHARS], " ".join(text.split()[:2])
    elif kind == "admin" and text.startswith(_OF_JOBS):
        source = source[:JOB_CHARS]
    return {**event, "source": hidden(source), "text": text}
