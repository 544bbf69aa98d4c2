"""Simulated users: they search, follow searches, run batch jobs, and some exceed their limit.

They use only the HTTP routes of the service, and count the answers. Each user has an IP address of its own,
sent as ``X-Forwarded-For``.
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

from comporta.demo.parent_pipe import send_message

USERS: Final = 9
"""How many users search at the same time, each one search after another."""

POPULAR_QUERIES: Final = 7
"""How many searches the users repeat."""

REPORT_SECONDS: Final = 0.5
HTTP_TIMEOUT_SECONDS: Final = 30.0
"""How long a user waits for the next bytes.

A stream may be silent for several seconds while a refresh waits behind people, without the connection being
broken.
"""

_STATES = ("SP", "RJ", "MG", "BA", "PR", "RS", "PE", "CE", "SC", "GO", "DF", "MA")
_TERMS = ("uniformes", "merenda", "medicamentos", "pavimentação", "computadores")
_NEW_QUERY_SHARE = 0.06
_THINK_SECONDS = 0.9
_ALL_STATES_SECONDS = 45.0
_WATCH_SECONDS = 15.0
_JOB_SECONDS = 16.0
_BURST_SECONDS = 7.0
_BURST_SIZE = 40
_ACCOUNTS_RANGE = (80, 200)
_SHEET_DELAY_SECONDS = 2.0
_RECONNECT_SECONDS = 0.2

Query = dict[str, str]


def run_users(address: str) -> None:
    """Run all users until the process ends."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_SimulatedUsers(address).run())


class _SimulatedUsers:
    """All users, and the counts of their answers."""

    def __init__(self, address: str) -> None:
        self._counts: Counter[str] = Counter()
        self._address = address
        self._client_numbers = itertools.count(1)
        self._today = datetime.now(UTC).date()
        self._popular = [self._random_query(random.Random(number)) for number in range(POPULAR_QUERIES)]
        self._job_numbers = itertools.count(1)

    async def run(self) -> None:
        """Run until cancelled."""
        limits = httpx2.Limits(max_connections=100, max_keepalive_connections=10)
        async with httpx2.AsyncClient(
            base_url=self._address, timeout=HTTP_TIMEOUT_SECONDS, limits=limits, trust_env=False
        ) as client:
            self._client = client
            await self._wait_until_ready()
            async with asyncio.TaskGroup() as group:
                for _ in range(USERS):
                    group.create_task(self._run_user())
                group.create_task(self._repeat(self._search_all_states, _ALL_STATES_SECONDS))
                group.create_task(self._repeat(self._watch_search, _WATCH_SECONDS))
                group.create_task(self._repeat(self._run_job, _JOB_SECONDS))
                group.create_task(self._repeat(self._send_burst, _BURST_SECONDS))
                group.create_task(self._report_counts())

    async def _wait_until_ready(self) -> None:
        """Wait until a worker serves requests."""
        while True:
            with suppress(httpx2.HTTPError):
                if (await self._client.get("/readyz")).status_code == 200:
                    return
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _report_counts(self) -> None:
        while True:
            send_message(**self._counts)
            await asyncio.sleep(REPORT_SECONDS)

    async def _run_user(self) -> None:
        """Search again and again, with a random pause in between."""
        headers = self._new_client_headers()
        while True:
            await asyncio.sleep(random.expovariate(1 / _THINK_SECONDS))
            is_new = random.random() < _NEW_QUERY_SHARE
            query = self._random_query(random) if is_new else random.choice(self._popular)
            await self._search(query, headers)

    async def _repeat(
        self, activity: Callable[[dict[str, str]], Coroutine[Any, Any, None]], mean: float
    ) -> None:
        """Run an activity at random intervals, each time as a new user; count connections that break."""
        wait = random.uniform(0.1, 0.4) * mean
        while True:
            await asyncio.sleep(wait)
            wait = random.uniform(0.3, 1.0) * mean
            try:
                await activity(self._new_client_headers())
            except (httpx2.HTTPError, ValueError):  # a scenario may kill a worker at any moment
                self._counts["broken"] += 1

    async def _search_all_states(self, headers: dict[str, str]) -> None:
        """Send a new search over all 27 states: more calls than the limit grants at once."""
        query = self._random_query(random)
        del query["ufs"]
        await self._search(query, headers)

    async def _watch_search(self, headers: dict[str, str]) -> None:
        """Follow the progress of a search as a stream."""
        query = self._random_query(random) | {"ufs": ",".join(random.sample(_STATES, 4))}
        async with self._client.stream("GET", "/v1/search/stream", params=query, headers=headers) as stream:
            async for line in stream.aiter_lines():
                self._counts["watched"] += line.startswith("event: result")

    async def _run_job(self, headers: dict[str, str]) -> None:
        """Run a batch job, and configure a sheet for its results while it runs."""
        name = f"lot-{next(self._job_numbers):04}"
        accounts = [f"{random.randrange(10**8):08}" for _ in range(random.randint(*_ACCOUNTS_RANGE))]
        body = {"accounts": accounts, "user_id": "ana", "job_id": name}
        await asyncio.gather(self._follow_job(body, headers), self._configure_sheet(name, headers))

    async def _follow_job(self, body: dict[str, Any], headers: dict[str, str]) -> None:
        async with self._client.stream("POST", "/ultra-batch/jobs", json=body, headers=headers) as stream:
            async for line in stream.aiter_lines():
                self._counts["jobs"] += json.loads(line)["event"] == "end"

    async def _configure_sheet(self, job: str, headers: dict[str, str]) -> None:
        await asyncio.sleep(_SHEET_DELAY_SECONDS)
        body = {"job_id": job, "user_id": "ana", "custom_name": f"Results of {job}"}
        with suppress(httpx2.HTTPError):
            await self._client.post("/ultra-batch/configure-sheets", json=body, headers=headers)

    async def _send_burst(self, headers: dict[str, str]) -> None:
        """Send far more searches at once than the limit of one client allows."""
        query = random.choice(self._popular)
        await asyncio.gather(*(self._search(query, headers) for _ in range(_BURST_SIZE)))

    async def _search(self, query: Query, headers: dict[str, str]) -> None:
        try:
            answer = await self._client.get("/v1/search", params=query, headers=headers)
        except httpx2.HTTPError:
            self._counts["broken"] += 1
            await asyncio.sleep(_RECONNECT_SECONDS)
        else:
            self._counts[_answer_kind(answer)] += 1

    def _random_query(self, generator: Any) -> Query:
        """Return a random search, which has probably not been sent before: there are thousands."""
        last: date = self._today - timedelta(generator.randint(1, 700))
        return {
            "date_from": (last - timedelta(generator.randint(0, 1))).isoformat(),
            "date_to": last.isoformat(),
            "modality": str(generator.choice((4, 5, 6, 8))),
            "ufs": ",".join(sorted(generator.sample(_STATES, generator.randint(1, 2)))),
            "terms": generator.choice(_TERMS),
            "limit": "50",
        }

    def _new_client_headers(self) -> dict[str, str]:
        number = next(self._client_numbers)
        return {"x-forwarded-for": f"10.0.{number // 250 % 250}.{number % 250 + 1}"}


def _answer_kind(answer: httpx2.Response) -> str:
    """Return which of ``ANSWER_KINDS`` a response is."""
    if answer.status_code == 429:
        return "over"
    if answer.status_code == 503:
        return "nothing"
    if answer.status_code != 200:
        sys.stderr.write(f"{answer.status_code}: {answer.text[:300]}\n")
        return "failed"
    if answer.headers.get("comporta-pending-sources"):
        return "pending"
    if answer.headers.get("comporta-missing-sources"):
        return "partial"
    return answer.headers["comporta-freshness"]
