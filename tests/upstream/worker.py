"""What worker processes do with upstreams: the program of ``tests/processes/fleet.py`` for these tests."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import httpx2
from tests.processes.jobs import ready, say

from comporta import RefusedError, Retry, Upstream, last_call


def steps(url: str, state: str, number: int = 0, **options: Any) -> None:
    """Make one call, blocking, for each word that comes, and tell how it went."""
    retry = Retry(base=0.0, jitter=(0, 0), state="memory://")
    upstream = Upstream("simulated", state=state, retry=retry, **options)
    with httpx2.Client(transport=upstream.sync.transport(), trust_env=False, timeout=30) as client:
        ready()
        while True:
            say(_told(client, url))
            if not sys.stdin.readline():
                return


def _told(client: httpx2.Client, url: str) -> dict[str, Any]:
    status, retry_after = 0, 0.0
    try:
        status = client.get(url).status_code
    except RefusedError as error:
        retry_after = error.retry_after
    report = last_call()
    assert report is not None
    return {
        "status": status,
        "retry_after": retry_after,
        "outcome": report.outcome,
        "waited": report.waited,
        "circuit": report.circuit,
    }


def together(url: str, state: str, calls: int, number: int = 0, **options: Any) -> None:
    """Make calls, awaiting, all at once; tell statuses, circuits, and when the last was answered.

    One request before that, past all rules, so that the first that counts is no slower than the others.
    """
    upstream = Upstream("simulated", state=state, **options)

    async def fetch(client: httpx2.AsyncClient) -> tuple[int, str]:
        response = await client.get(url)
        return response.status_code, response.extensions["comporta"].circuit

    async def main() -> dict[str, Any]:
        inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=calls))
        transport = upstream.transport(inner)
        async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=60) as client:
            await upstream.get_state()  # connected, and known to the others, before it begins
            warm = await inner.handle_async_request(client.build_request("GET", url))
            await warm.aclose()
            ready()
            answers = await asyncio.gather(*(fetch(client) for _ in range(calls)))
        ended_ns = time.monotonic_ns()
        await upstream.aclose()
        return {
            "statuses": [status for status, _ in answers],
            "circuits": sorted({circuit for _, circuit in answers}),
            "ended_ns": ended_ns,
        }

    say(asyncio.run(main()))


JOBS: dict[str, Any] = {"steps": steps, "together": together}

if __name__ == "__main__":
    JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
