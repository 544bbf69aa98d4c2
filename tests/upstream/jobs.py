"""The jobs of worker processes that use an upstream (see ``tests/processes/fleet.py``)."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import httpx2
from tests.processes.jobs import send_result, wait_for_start

from comporta import RefusedError, Retry, Upstream, last_call


def steps(url: str, state: str, number: int = 0, **options: Any) -> None:
    """Make one blocking call for each line on standard input, and send its result."""
    retry = Retry(base=0.0, jitter=(0, 0), state="memory://")
    upstream = Upstream("simulated", state=state, retry=retry, **options)
    with httpx2.Client(transport=upstream.sync.transport(), trust_env=False, timeout=30) as client:
        wait_for_start()
        while True:
            send_result(_call(client, url))
            if not sys.stdin.readline():
                return


def _call(client: httpx2.Client, url: str) -> dict[str, Any]:
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
    """Make async calls all at once; send statuses, circuits, and the time of the last answer.

    One request before that bypasses the policies, so that the first call is not slower than the others.
    """
    upstream = Upstream("simulated", state=state, **options)

    async def fetch(client: httpx2.AsyncClient) -> tuple[int, str]:
        response = await client.get(url)
        return response.status_code, response.extensions["comporta"].circuit

    async def main() -> dict[str, Any]:
        inner = httpx2.AsyncHTTPTransport(limits=httpx2.Limits(max_connections=calls))
        transport = upstream.transport(inner)
        async with httpx2.AsyncClient(transport=transport, trust_env=False, timeout=60) as client:
            await upstream.get_state()  # connects, and registers this worker, before the start
            warm = await inner.handle_async_request(client.build_request("GET", url))
            await warm.aclose()
            wait_for_start()
            answers = await asyncio.gather(*(fetch(client) for _ in range(calls)))
        ended_ns = time.monotonic_ns()
        await upstream.aclose()
        return {
            "statuses": [status for status, _ in answers],
            "circuits": sorted({circuit for _, circuit in answers}),
            "ended_ns": ended_ns,
        }

    send_result(asyncio.run(main()))


def stream(url: str, state: str, number: int = 0, **options: Any) -> None:
    """Open a stream, send the owner of its permit, and read the rest at the next signal."""
    upstream = Upstream("simulated", state=state, **options)
    assert upstream.permits is not None
    transport = upstream.options(timeout=None).sync.transport()
    with httpx2.Client(transport=transport, trust_env=False) as client, client.stream("GET", url) as response:
        [holder] = upstream.permits.sync.holders()
        send_result(holder.owner)
        wait_for_start()
        send_result(len(response.read()))
    upstream.sync.close()


JOBS: dict[str, Any] = {"steps": steps, "stream": stream, "together": together}
