"""Who may have a sheet: what the record of a user says, else the configuration of the team.

It blocks, as the database does; whoever is on an event loop asks :meth:`Whitelist.known` first and the rest
on a thread. What was read is kept for five minutes, refusals as well.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, NamedTuple

from comporta.clock import MONOTONIC, Clock
from comporta.database.base import Database
from comporta.service.batch.statements import IS_DIGITAL, LET_USER, LISTED, SET_TEAM, SET_USER

SECONDS: Final = 300.0
USERS_MAX: Final = 10_000
"""How many answers are kept; the oldest is dropped for the next."""


NAME_CHARS_MAX: Final = 200


class Listed(NamedTuple):
    """A user, or a team, and whether there may be sheets."""

    kind: str
    name: str
    team: str | None
    digital: bool


class Whitelist:
    """Answers for one process."""

    def __init__(
        self,
        database: Database,
        *,
        seconds: float = SECONDS,
        users_max: int = USERS_MAX,
        clock: Clock = MONOTONIC,
    ) -> None:
        self._database = database
        self._keep_ns = round(seconds * 1e9)
        self._users_max = users_max
        self._clock = clock
        self._lock = Lock()
        self._answers: dict[str, tuple[int, bool]] = {}

    def is_digital(self, user_id: str) -> bool:
        """Whether a user may have sheets."""
        known = self.known(user_id)
        return self._asked(user_id) if known is None else known

    def known(self, user_id: str) -> bool | None:
        """Return what was read less than five minutes ago; never waits."""
        until_ns, answer = self._answers.get(user_id, (0, False))
        return answer if self._clock.now_ns() < until_ns else None

    def set_user(self, user_id: str, *, team: str | None = None, digital: bool | None = None) -> None:
        """Write the record of a user; ``digital`` left out: what the team's configuration says."""
        told = {"user_id": _checked("user", user_id), "team": team and _checked("team", team)}
        self._database.write((SET_USER,), {**told, "digital": digital})
        with self._lock:
            self._answers.pop(user_id, None)

    def let_user(self, user_id: str, *, digital: bool) -> None:
        """Say of a user, who stays in the team, whether there may be sheets."""
        self._database.write((LET_USER,), {"user_id": _checked("user", user_id), "digital": digital})
        with self._lock:
            self._answers.pop(user_id, None)

    def set_team(self, team: str, *, digital: bool) -> None:
        """Write the configuration of a team."""
        self._database.write((SET_TEAM,), {"team": _checked("team", team), "digital": digital})
        with self._lock:
            self._answers.clear()

    def listed(self, count: int) -> list[Listed]:
        """Return so many of those of whom something is said: teams first, then users."""
        found = self._database.read(LISTED, {"count": count})
        return [Listed(kind, name, team, bool(digital)) for kind, name, team, digital in found]

    def _asked(self, user_id: str) -> bool:
        found = self._database.read(IS_DIGITAL, {"user_id": user_id})
        answer = bool(found and found[0][0])
        with self._lock:
            self._answers.pop(user_id, None)  # what is new stands last
            while len(self._answers) >= self._users_max:
                del self._answers[next(iter(self._answers))]
            self._answers[user_id] = (self._clock.now_ns() + self._keep_ns, answer)
        return answer


def _checked(field: str, name: str) -> str:
    """Return a name that requests can have as well."""
    if not 1 <= len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"{field} must be 1 to {NAME_CHARS_MAX} characters, got {len(name)}")
    if "\0" in name or not name.isprintable():
        raise ValueError(f"{field} must be text that can be printed, got {name!r:.250}")
    return name
