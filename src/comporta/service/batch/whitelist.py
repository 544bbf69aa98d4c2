"""Decides who may have a sheet: the user's own record, otherwise the record of the user's team.

It blocks on the database. Code on an event loop calls :meth:`Whitelist.cached_answer` first and
:meth:`Whitelist.is_digital` on a thread. Answers, including refusals, are cached for 5 minutes.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, NamedTuple

from comporta.clock import MONOTONIC, Clock
from comporta.database.base import Database
from comporta.service.batch.sql import IS_DIGITAL, LIST_WHITELIST, SET_TEAM, SET_USER, SET_USER_DIGITAL
from comporta.validators import require_text

CACHE_SECONDS: Final = 300.0
USERS_MAX: Final = 10_000
"""How many answers are cached; the oldest is evicted first."""
NAME_CHARS_MAX: Final = 200


class WhitelistEntry(NamedTuple):
    """A user or a team, and whether it may have sheets."""

    kind: str
    name: str
    team: str | None
    digital: bool


class Whitelist:
    """The whitelist, with a cache for one process."""

    def __init__(
        self,
        database: Database,
        *,
        seconds: float = CACHE_SECONDS,
        users_max: int = USERS_MAX,
        clock: Clock = MONOTONIC,
    ) -> None:
        self._database = database
        self._cache_ns = round(seconds * 1e9)
        self._users_max = users_max
        self._clock = clock
        self._lock = Lock()
        self._answers: dict[str, tuple[int, bool]] = {}

    def is_digital(self, user_id: str) -> bool:
        """Whether a user may have sheets."""
        cached = self.cached_answer(user_id)
        return self._query(user_id) if cached is None else cached

    def cached_answer(self, user_id: str) -> bool | None:
        """Return the answer if it is cached, else ``None``; never blocks."""
        until_ns, answer = self._answers.get(user_id, (0, False))
        return answer if self._clock.now_ns() < until_ns else None

    def set_user(self, user_id: str, *, team: str | None = None, digital: bool | None = None) -> None:
        """Write the record of a user; without ``digital`` the team's record decides."""
        record = {
            "user_id": require_text("user", user_id, NAME_CHARS_MAX),
            "team": team and require_text("team", team, NAME_CHARS_MAX),
        }
        self._database.write((SET_USER,), {**record, "digital": digital})
        with self._lock:
            self._answers.pop(user_id, None)

    def set_user_digital(self, user_id: str, *, digital: bool) -> None:
        """Allow or forbid sheets for a user without changing the user's team."""
        self._database.write(
            (SET_USER_DIGITAL,),
            {"user_id": require_text("user", user_id, NAME_CHARS_MAX), "digital": digital},
        )
        with self._lock:
            self._answers.pop(user_id, None)

    def set_team(self, team: str, *, digital: bool) -> None:
        """Allow or forbid sheets for a team."""
        self._database.write(
            (SET_TEAM,), {"team": require_text("team", team, NAME_CHARS_MAX), "digital": digital}
        )
        with self._lock:
            self._answers.clear()

    def list_entries(self, count: int) -> list[WhitelistEntry]:
        """Return up to ``count`` entries: teams first, then users."""
        rows = self._database.read(LIST_WHITELIST, {"count": count})
        return [WhitelistEntry(kind, name, team, bool(digital)) for kind, name, team, digital in rows]

    def _query(self, user_id: str) -> bool:
        rows = self._database.read(IS_DIGITAL, {"user_id": user_id})
        answer = bool(rows and rows[0][0])
        with self._lock:
            self._answers.pop(user_id, None)  # so that the new answer is the newest
            while len(self._answers) >= self._users_max:
                del self._answers[next(iter(self._answers))]
            self._answers[user_id] = (self._clock.now_ns() + self._cache_ns, answer)
        return answer
