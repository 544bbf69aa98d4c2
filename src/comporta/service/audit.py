"""What operators did, and what came of it: written down before it is done, so that nothing is done unwritten.

The latest are kept, so many and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta import events
from comporta.breaker.admission import owner
from comporta.database.base import Statement

if TYPE_CHECKING:
    from comporta.database.base import Database

KEPT_MAX: Final = 10_000
CHARS_MAX: Final = 500
UNKNOWN: Final = "unknown"
"""What came of an action whose worker ended before it could say."""

_BEGIN = Statement(
    """
    INSERT INTO service_audit (at, action, target, detail, client, worker, outcome)
    VALUES (AT(:now), :action, :target, :detail, :client, :worker, :outcome) RETURNING id
    """
)
_BOUND = Statement(
    "DELETE FROM service_audit WHERE id <= (SELECT MAX(id) FROM service_audit) - CAST(:kept AS BIGINT)"
)
_END = Statement("UPDATE service_audit SET outcome = :outcome WHERE id = :id")
_LATEST = Statement(
    """
    SELECT id, UNIX(at), action, target, detail, client, worker, outcome FROM service_audit
    ORDER BY id DESC LIMIT :limit
    """
)


class Action(NamedTuple):
    """One entry; ``at`` in Unix seconds."""

    id: int
    at: float
    action: str
    target: str
    detail: str
    client: str
    worker: str
    outcome: str


class Audit:
    """The log of one database."""

    def __init__(self, database: Database, kept_max: int = KEPT_MAX) -> None:
        self._database = database
        self._kept_max = kept_max

    async def begun(self, action: str, target: str, detail: str, client: str) -> int:
        """Write down what is about to be done; where that is impossible it is not to be done."""
        told: dict[str, Any] = {
            "action": action,
            "target": _plain(target),
            "detail": _plain(detail),
            "client": _plain(client),
            "worker": owner(),
            "outcome": UNKNOWN,
            "kept": self._kept_max,
        }
        [[[number]], _] = await self._database.write_async((_BEGIN, _BOUND), told)
        events.publish("admin", told["target"], f"{action} {told['detail']}".strip(), "info")
        return int(number)

    async def ended(self, number: int, outcome: str) -> None:
        """Write down what came of it."""
        await self._database.write_async((_END,), {"id": number, "outcome": _plain(outcome)})

    async def latest(self, limit: int = 100) -> list[Action]:
        """Return the latest, the newest first."""
        rows = await self._database.read_async(_LATEST, {"limit": limit}, small=False)
        return [Action._make(row) for row in rows]


def _plain(text: str) -> str:
    """Return a text as one line of bounded length: parts of it come from whoever sent them."""
    return "".join(one if one.isprintable() else " " for one in text[:CHARS_MAX])
