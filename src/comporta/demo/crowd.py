"""Twelve people who search all states at once, and one who needs a single state, for the scenario ``crowd``.

They use the HTTP route of the service. Each asks again for what is pending, at the time that the answer says.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx2

from comporta.demo.config import PEOPLE

HTTP_TIMEOUT_SECONDS: Final = 30.0
FIRST_DAY_AGE: Final = 800
"""The age of the notices that the first person searches, in days; no other person searches that day."""

_RETRY_SECONDS = (0.5, 3.0)
"""How soon a person asks again, at the earliest and at the latest."""


class DemoCrowd:
    """The crowd and the counts of its answers.

    ``waiting`` counts people whose answers are not complete, ``answered`` first answers, ``parts`` first
    answers with only a part, ``whole`` complete answers. ``single`` counts answers for people who needed one
    state, and ``single_ms`` is how long the last of these took.
    """

    def __init__(self, client: httpx2.AsyncClient, address: str) -> None:
        self.counts: Counter[str] = Counter()
        self._client = client
        self._address = address
        self._count = self._first_number = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, name: str) -> None:
        """Let the crowd search (``all``), or one more person (``one``), for the day of the first."""
        if name == "all":
            self._first_number = self._count
        for _ in range(PEOPLE if name == "all" else 1):
            number, self._count = self._count, self._count + 1
            task = asyncio.create_task(
                self._search_all(number) if name == "all" else self._search_one(number)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _search_all(self, number: int) -> None:
        """Search until nothing is pending; a worker may be killed meanwhile."""
        self.counts["waiting"] += 1
        is_first = True
        while True:
            with suppress(httpx2.HTTPError, ValueError, KeyError):
                body = await self._search(number, number)
                self.counts["answered"] += is_first
                self.counts["parts"] += is_first and bool(body["pending"])
                is_first = False
                if not body["pending"]:
                    break
                ready_at = datetime.fromisoformat(str(body["estimated_ready_at"]))
                await asyncio.sleep(_retry_delay((ready_at - datetime.now(UTC)).total_seconds()))
                continue
            await asyncio.sleep(_RETRY_SECONDS[0])
        self.counts["whole"] += 1
        self.counts["waiting"] -= 1

    async def _search_one(self, number: int) -> None:
        began = time.monotonic()
        with suppress(httpx2.HTTPError, ValueError):
            await self._search(number, self._first_number, ufs="SP", modality="8")
            self.counts["single"] += 1
            self.counts["single_ms"] = round(1000 * (time.monotonic() - began))

    async def _search(self, number: int, day_number: int, **more: str) -> dict[str, object]:
        day = (datetime.now(UTC) - timedelta(days=FIRST_DAY_AGE + day_number)).date().isoformat()
        response = await self._client.get(
            f"{self._address}/v1/search",
            params={"date_from": day, "date_to": day, "user": f"person {number}", "limit": "50", **more},
            headers={"x-forwarded-for": f"10.1.{number // 250 % 250}.{number % 250 + 1}"},
            timeout=HTTP_TIMEOUT_SECONDS,
        )
        body: dict[str, object] = response.json()
        return body


def _retry_delay(seconds: float) -> float:
    shortest, longest = _RETRY_SECONDS
    return min(longest, max(shortest, seconds))
