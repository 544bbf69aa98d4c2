"""An upstream that refuses calls now and then: how far its limit falls, and how long the work takes.

The docs promise that work takes at most 1.2 times as long as the limit and the pauses require.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

import httpx2
import pytest
from benchmarks.refusals import RATIO_MAX, simulate
from tests.cli.cli_runner import run
from tests.support import assert_within

from comporta import LimitConfig, Upstream
from comporta.testing.http_server import HttpRequest, HttpServer, json_response

CALLS, RATE, IN_FLIGHT, PAUSE = 120, 60, 32, 1
REFUSED = (15, 16, 50, 90)
"""The numbers of the calls that are refused; the first two fall into one pause."""


class RefusingServer(HttpServer):
    """Refuses some calls, by their number; ``refused_at`` are the times at which it did so."""

    def __init__(self, refused: Collection[int], headers: dict[str, str], delay: float = 0.02) -> None:
        super().__init__()
        self.refused_at: list[float] = []
        self.count = 0
        self._refused = refused
        self._headers = headers
        self._delay = delay

    async def _respond(self, request: HttpRequest) -> bytes:
        number = self.count
        self.count += 1
        await asyncio.sleep(self._delay)  # sleeps: a response takes this long
        if number not in self._refused:
            return json_response(200)
        self.refused_at.append(time.monotonic())
        return json_response(429, None, self._headers)

    def promised_seconds(self) -> float:
        """Return how long the calls may take; pauses that overlap count once."""
        paused, end = 0.0, 0.0
        for moment in self.refused_at:
            paused += moment + PAUSE - max(moment, end)
            end = moment + PAUSE
        return RATIO_MAX * (CALLS / RATE + paused)


async def fetch_all(upstream: Upstream, url: str, count: int, in_flight: int) -> list[int]:
    """Make ``count`` calls, ``in_flight`` at a time, and return their statuses."""
    numbers, statuses = iter(range(count)), []
    async with httpx2.AsyncClient(transport=upstream.transport()) as client:

        async def fetch() -> None:
            for number in numbers:
                response = await client.get(f"{url}/{number}")
                statuses.append(response.status_code)

        await asyncio.gather(*(fetch() for _ in range(in_flight)))
    await upstream.aclose()
    return statuses


def test_refusals__twenty_at_once__lower_the_limit_once(state: str) -> None:
    with RefusingServer(range(20), {}, delay=0.2) as server:
        upstream = Upstream("refusing", "1000/s", retry=False, state=state)
        assert asyncio.run(fetch_all(upstream, server.url, 20, 20)) == [429] * 20
    assert Upstream("refusing", "1000/s", state=state).sync.get_state().limiter.limit == 800


@pytest.mark.unmeasured
@pytest.mark.parametrize("seed", range(5))
def test_upstream__400_calls_of_which_12_are_refused__takes_at_most_1_2_times_the_shortest(seed: int) -> None:
    """On simulated time: 50 calls a second, 32 in flight, each refusal with ``Retry-After: 1``."""
    job = simulate(seed)
    assert len(job.refused_at) == 12
    assert job.ratio <= RATIO_MAX


def test_upstream__some_calls_refused__takes_as_long_as_limit_and_pauses_require() -> None:
    with RefusingServer(REFUSED, {"Retry-After": str(PAUSE)}) as server:
        upstream = Upstream("refusing", LimitConfig(RATE, 30), state="memory://")
        began = time.monotonic()
        assert asyncio.run(fetch_all(upstream, server.url, CALLS, IN_FLIGHT)) == [200] * CALLS
        assert_within(time.monotonic() - began, server.promised_seconds())
    assert server.count == CALLS + len(REFUSED)


@pytest.mark.unmeasured
@pytest.mark.parametrize("options", [[], ["--no-degradation"]])
def test_run__some_calls_refused__takes_as_long_as_limit_and_pauses_require(
    tmp_path: Path, options: list[str]
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text("".join(f"{number}\n" for number in range(CALLS)))
    with RefusingServer(REFUSED, {"Retry-After": str(PAUSE)}) as server:
        limit = ["--limit", f"{RATE}/s burst 30", "--in-flight", str(IN_FLIGHT), "--state", "memory://"]
        began = time.monotonic()
        result = run(
            *("run", str(source), "--url", server.url + "/{line}", "--output", str(output), *limit, *options)
        )
        assert_within(time.monotonic() - began, server.promised_seconds())
    assert result.exit_code == 0, result.output
    assert len(output.read_text().splitlines()) == CALLS
