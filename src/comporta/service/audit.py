"""The audit log: every operator action and its outcome, in a database table.

An entry is written before its action runs, so an action that cannot be logged is not performed. The table
keeps the latest ``ENTRIES_MAX`` entries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta import events
from comporta.breaker.admission import worker_name
from comporta.database.base import Statement
from comporta.fleet.event_journal import ADMIN, action_text

if TYPE_CHECKING:
    from comporta.database.base import Database

ENTRIES_MAX: Final = 10_000
FIELD_CHARS_MAX: Final = 500
OUTCOME_UNKNOWN: Final = "unknown"
"""The outcome of an action whose worker ended before it could record one."""

_BEGIN = Statement(
    """
    INSERT INTO service_audit (at, action, target, detail, client, token, worker, outcome)
    VALUES (AT(:now), :action, :target, :detail, :client, :token, :worker, :outcome) RETURNING id
    """
)
_TRIM = Statement(
    "DELETE FROM service_audit WHERE id <= (SELECT MAX(id) FROM service_audit) - CAST(:kept AS BIGINT)"
)
_END = Statement("UPDATE service_audit SET outcome = :outcome WHERE id = :id")
_LATEST = Statement(
    """
    SELECT id, UNIX(at), action, target, detail, client, token, worker, outcome FROM service_audit
    ORDER BY id DESC LIMIT :limit
    """
)


class AuditEntry(NamedTuple):
    """One logged action; ``at`` is in Unix seconds, ``token`` the name of the token that allowed it."""

    id: int
    at: float
    action: str
    target: str
    detail: str
    client: str
    token: str
    worker: str
    outcome: str


class AuditLog:
    """The audit log in one database."""

    def __init__(self, database: Database, entries_max: int = ENTRIES_MAX) -> None:
        self._database = database
        self._entries_max = entries_max

    async def begin(self, action: str, target: str, detail: str, client: str, token: str) -> int:
        """Log an action that is about to run and return the id of its entry. If this fails, do not run it."""
        entry: dict[str, Any] = {
            "action": action,
            "target": _single_line(target),
            "detail": _single_line(detail),
            "client": _single_line(client),
            "token": _single_line(token),
            "worker": worker_name(),
            "outcome": OUTCOME_UNKNOWN,
            "kept": self._entries_max,
        }
        [[[entry_id]], _] = await self._database.write_async((_BEGIN, _TRIM), entry)
        text = action_text(action, entry["detail"], entry["token"])
        events.publish(ADMIN, entry["target"], text, "info", label="operators")
        return int(entry_id)

    async def finish(self, entry_id: int, outcome: str) -> None:
        """Record the outcome of an action."""
        await self._database.write_async((_END,), {"id": entry_id, "outcome": _single_line(outcome)})

    async def latest(self, limit: int = 100) -> list[AuditEntry]:
        """Return the latest entries, the newest first."""
        rows = await self._database.read_async(_LATEST, {"limit": limit})
        return [AuditEntry._make(row) for row in rows]


def _single_line(text: str) -> str:
    """Return ``text`` as one line of bounded length: clients control parts of it."""
    return "".join(char if char.isprintable() else " " for char in text[:FIELD_CHARS_MAX])
