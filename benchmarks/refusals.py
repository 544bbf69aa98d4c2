"""How long a job takes if its upstream refuses some calls, compared with what limit and pauses require.

400 calls at 50 a second with a burst of 50, 32 in flight; the upstream refuses 12 of them, at random, with
``Retry-After: 1``. The shortest time is 8 s for the calls and the time of all pauses; pauses that overlap
count once. A burst and the tokens that accumulate during pauses can make a job faster than that.

``simulate`` runs a job on simulated time. ``run`` also measures a real server and ``comporta run``.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx2

from benchmarks.degradation import silent_log
from benchmarks.measure import Effort
from benchmarks.pictures.simulated import SimulatedClock, run_scene
from benchmarks.report import TIMES, Goal, Section, Table
from comporta import LimitConfig, Upstream
from comporta.stores.memory import MemoryStore
from comporta.testing.http_server import HttpRequest, HttpServer, json_response

CALLS, RATE, BURST, IN_FLIGHT = 400, 50, 50, 32
REFUSALS, PAUSE_SECONDS = 12, 1
RESPONSE_SECONDS = 0.03
RATIO_MAX = 1.2
"""The promise: a job takes at most this many times the shortest time."""


class Job(NamedTuple):
    """How long a job took, and when its upstream refused a call."""

    seconds: float
    refused_at: Sequence[float]

    @property
    def shortest_seconds(self) -> float:
        """The time that the limit and the pauses require."""
        return CALLS / RATE + paused_seconds(self.refused_at)

    @property
    def ratio(self) -> float:
        """The time that the job took, divided by the shortest."""
        return self.seconds / self.shortest_seconds


def paused_seconds(refused_at: Sequence[float]) -> float:
    """Return the time of all pauses; pauses that overlap count once."""
    total, end = 0.0, 0.0
    for moment in sorted(refused_at):
        total += moment + PAUSE_SECONDS - max(moment, end)
        end = moment + PAUSE_SECONDS
    return total


def refused_numbers(seed: int) -> Collection[int]:
    """Return the numbers of the calls that the upstream refuses."""
    return frozenset(Random(seed).sample(range(CALLS), REFUSALS))


class Response(NamedTuple):
    """The parts of an HTTP response that the policies read."""

    status_code: int
    headers: Mapping[str, str]


class RefusingUpstream:
    """Counts calls, and refuses those with certain numbers."""

    def __init__(self, seed: int, now: Callable[[], float]) -> None:
        self.refused_at: list[float] = []
        self._refused = refused_numbers(seed)
        self._now = now
        self._count = 0

    async def respond(self) -> Response:
        """Return the response to the next call."""
        number = self._count
        self._count += 1
        await asyncio.sleep(RESPONSE_SECONDS)
        if number not in self._refused:
            return Response(200, {})
        self.refused_at.append(self._now())
        return Response(429, {"Retry-After": str(PAUSE_SECONDS)})


class RefusingServer(HttpServer):
    """A refusing upstream behind HTTP."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.upstream = RefusingUpstream(seed, time.monotonic)

    async def _respond(self, request: HttpRequest) -> bytes:
        status, headers = await self.upstream.respond()
        return json_response(status, None, dict(headers))


def simulate(seed: int, **options: Any) -> Job:
    """Run a job on simulated time; ``options`` are those of the upstream."""
    clock = SimulatedClock()
    refusing = RefusingUpstream(seed, lambda: clock.seconds)
    limit = LimitConfig(RATE, BURST)
    upstream = Upstream("refusing", limit, timeout=None, state=MemoryStore(clock), **options)

    async def scene() -> float:
        await make_calls(lambda _: upstream.call(refusing.respond))
        return clock.seconds

    return Job(run_scene(scene(), clock), refusing.refused_at)


async def make_calls(call: Callable[[int], Any]) -> None:
    """Make all calls, several at a time; each must succeed."""
    numbers = iter(range(CALLS))

    async def caller() -> None:
        for number in numbers:
            response = await call(number)
            assert response.status_code == 200, response

    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))


def measure_upstream(seed: int, **options: Any) -> Job:
    """Run a job against a real server, through the transport of an upstream."""

    async def job(url: str) -> float:
        upstream = Upstream("refusing", LimitConfig(RATE, BURST), state="memory://", **options)
        async with httpx2.AsyncClient(transport=upstream.transport()) as client:
            began = time.monotonic()
            await make_calls(lambda number: client.get(f"{url}/{number}"))
            return time.monotonic() - began

    with RefusingServer(seed) as server:
        return Job(asyncio.run(job(server.url)), server.upstream.refused_at)


def measure_command(seed: int, *options: str) -> Job:
    """Run a job with ``comporta run``, in another process."""
    with TemporaryDirectory() as folder, RefusingServer(seed) as server:
        source = Path(folder, "in.txt")
        source.write_text("".join(f"{number}\n" for number in range(CALLS)))
        command = [sys.executable, "-m", "comporta.cli", "run", str(source), "--url", server.url + "/{line}"]
        command += ["--output", str(Path(folder, "out.jsonl")), "--state", "memory://", "--json"]
        command += ["--limit", f"{RATE}/s burst {BURST}", "--in-flight", str(IN_FLIGHT), *options]
        result = subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
        summary = json.loads(result.stdout)
        assert (summary["done"], summary["dead"]) == (CALLS, 0), summary
        return Job(summary["seconds"], server.upstream.refused_at)


MEASURED: dict[str, Callable[[int], Job]] = {
    "`Upstream`": measure_upstream,
    "`Upstream(degradation=False)`": lambda seed: measure_upstream(seed, degradation=False),
    "`comporta run`": measure_command,
    "`comporta run --no-degradation`": lambda seed: measure_command(seed, "--no-degradation"),
}


def run(effort: Effort) -> Section:
    """Measure jobs against a real server."""
    section = Section(
        "Refused calls",
        f"{CALLS} calls at {RATE}/s with a burst of {BURST}, {IN_FLIGHT} in flight. The upstream refuses "
        f"{REFUSALS} of them, at random, with `Retry-After: {PAUSE_SECONDS}`. The shortest time is "
        f"{CALLS // RATE} s and the pauses; tokens that accumulate during pauses can make a job faster.",
    )
    rows = []
    for name, measure in MEASURED.items():
        with silent_log():
            jobs = [measure(seed) for seed in range(1 if effort.quick else 5)]
        slowest = max(jobs, key=lambda job: job.ratio)
        figures = (slowest.seconds, slowest.shortest_seconds, slowest.ratio)
        rows.append([name, *(f"{figure:.2f}" for figure in figures)])
        promise = f"{name} with refused calls: at most {RATIO_MAX:g} {TIMES} the shortest time"
        met = slowest.ratio <= RATIO_MAX
        section.goals.append(Goal(promise, f"{slowest.ratio:.2f} {TIMES}", met))
    head = ["", "seconds, slowest of all jobs", "shortest", "ratio"]
    section.tables.append(Table("Seconds per job", head, rows))
    return section
