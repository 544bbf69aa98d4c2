"""Simulated users: they search, watch searches, have batches done, and some ask more than they may.

They know nothing of the service but its addresses over HTTP, and count what they were answered. Each has an
address of its own, as if a proxy had told it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import httpx2

from comporta.demo.child import said

USERS: Final = 9
"""How many search, one question after the other."""

POPULAR: Final = 7
"""How many questions are asked again and again."""

TELL_SECONDS: Final = 0.5
WAIT_SECONDS: Final = 10.0

_STATES = ("SP", "RJ", "MG", "BA", "PR", "RS", "PE", "CE", "SC", "GO", "DF", "MA")
_TERMS = ("uniformes", "merenda", "medicamentos", "pavimentação", "computadores")
_NEW_SHARE = 0.06
_THINK_SECONDS = 0.9
_COUNTRY_SECONDS = 45.0
_WATCH_SECONDS = 15.0
_JOB_SECONDS = 16.0
_RUSH_SECONDS = 7.0
_RUSH = 40
_ACCOUNTS = (80, 200)
_SHEET_AFTER_SECONDS = 2.0
_NO_WORKER_SECONDS = 0.2

Query = dict[str, str]


def run(address: str) -> None:
    """Be all the users, until the process ends."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_Crowd(address).live())


class _Crowd:
    """All users, and what they were answered."""

    def __init__(self, address: str) -> None:
        self._counts: Counter[str] = Counter()
        self._address = address
        self._clients = itertools.count(1)
        self._today = datetime.now(UTC).date()
        self._popular = [self._question(random.Random(number)) for number in range(POPULAR)]
        self._jobs = itertools.count(1)

    async def live(self) -> None:
        """Go on for ever."""
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=10)
        async with httpx2.AsyncClient(
            base_url=self._address, timeout=WAIT_SECONDS, limits=limits, trust_env=False
        ) as client:
            self._client = client
            await self._served()
            async with asyncio.TaskGroup() as group:
                for _ in range(USERS):
                    group.create_task(self._user())
                group.create_task(self._again(self._country, _COUNTRY_SECONDS))
                group.create_task(self._again(self._watch, _WATCH_SECONDS))
                group.create_task(self._again(self._job, _JOB_SECONDS))
                group.create_task(self._again(self._rush, _RUSH_SECONDS))
                group.create_task(self._telling())

    async def _served(self) -> None:
        """Wait until somebody serves."""
        while True:
            with suppress(httpx2.HTTPError):
                if (await self._client.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(_NO_WORKER_SECONDS)

    async def _telling(self) -> None:
        while True:
            said(**self._counts)
            await asyncio.sleep(TELL_SECONDS)

    async def _user(self) -> None:
        """Search, read, think, search again."""
        told = self._somebody()
        while True:
            await asyncio.sleep(random.expovariate(1 / _THINK_SECONDS))
            known = random.random() >= _NEW_SHARE
            await self._search(random.choice(self._popular) if known else self._question(random), told)

    async def _again(self, what: Callable[[dict[str, str]], Coroutine[Any, Any, None]], mean: float) -> None:
        """Do something now and then, each time as somebody else; what breaks is counted."""
        wait = random.uniform(0.1, 0.4) * mean
        while True:
            await asyncio.sleep(wait)
            wait = random.uniform(0.3, 1.0) * mean
            try:
                await what(self._somebody())
            except (httpx2.HTTPError, ValueError):  # a worker may be killed at any moment
                self._counts["broken"] += 1

    async def _country(self, told: dict[str, str]) -> None:
        """Ask something new for all 27 states: more calls than the limit lets through at once."""
        query = self._question(random)
        del query["ufs"]
        await self._search(query, told)

    async def _watch(self, told: dict[str, str]) -> None:
        """Watch a search as it goes on."""
        query = self._question(random) | {"ufs": ",".join(random.sample(_STATES, 4))}
        async with self._client.stream("GET", "/v1/search/stream", params=query, headers=told) as stream:
            async for line in stream.aiter_lines():
                self._counts["watched"] += line.startswith("event: result")

    async def _job(self, told: dict[str, str]) -> None:
        """Have a batch done, and its results in a sheet from the middle of it on."""
        name = f"lot-{next(self._jobs):04}"
        accounts = [f"{random.randrange(10**8):08}" for _ in range(random.randint(*_ACCOUNTS))]
        body = {"accounts": accounts, "user_id": "ana", "job_id": name}
        await asyncio.gather(self._followed(body, told), self._sheet(name, told))

    async def _followed(self, body: dict[str, Any], told: dict[str, str]) -> None:
        async with self._client.stream("POST", "/ultra-batch/jobs", json=body, headers=told) as stream:
            async for line in stream.aiter_lines():
                self._counts["jobs"] += json.loads(line)["event"] == "end"

    async def _sheet(self, job: str, told: dict[str, str]) -> None:
        await asyncio.sleep(_SHEET_AFTER_SECONDS)
        body = {"job_id": job, "user_id": "ana", "custom_name": f"Results of {job}"}
        with suppress(httpx2.HTTPError):
            await self._client.post("/ultra-batch/configure-sheets", json=body, headers=told)

    async def _rush(self, told: dict[str, str]) -> None:
        """Ask far more at once than one client may."""
        query = random.choice(self._popular)
        await asyncio.gather(*(self._search(query, told) for _ in range(_RUSH)))

    async def _search(self, query: Query, told: dict[str, str]) -> None:
        try:
            answer = await self._client.get("/v1/search", params=query, headers=told)
        except httpx2.HTTPError:
            self._counts["broken"] += 1
            await asyncio.sleep(_NO_WORKER_SECONDS)
        else:
            self._counts[_kind(answer)] += 1

    def _question(self, chance: Any) -> Query:
        """Return a question; there are so many that a random one is most likely new."""
        last: date = self._today - timedelta(chance.randint(1, 700))
        return {
            "date_from": (last - timedelta(chance.randint(2, 6))).isoformat(),
            "date_to": last.isoformat(),
            "modality": str(chance.choice((4, 5, 6, 8))),
            "ufs": ",".join(sorted(chance.sample(_STATES, chance.randint(1, 2)))),
            "terms": chance.choice(_TERMS),
            "limit": "50",
        }

    def _somebody(self) -> dict[str, str]:
        number = next(self._clients)
        return {"x-forwarded-for": f"10.0.{number // 250 % 250}.{number % 250 + 1}"}


def _kind(answer: httpx2.Response) -> str:
    """Return what an answer is, in the words of the story."""
    if answer.status_code == 429:
        return "over"
    if answer.status_code == 503:
        return "nothing"
    if answer.status_code != 200:
        sys.stderr.write(f"{answer.status_code}: {answer.text[:300]}\n")
        return "failed"
    if answer.headers.get("comporta-missing-sources"):
        return "partial"
    return answer.headers["comporta-freshness"]
