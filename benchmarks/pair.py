"""Two processes that work at the same time, like two workers of a service.

They start once, build the same contenders, and then receive orders through a pipe: which contender to run,
on which key, when and for how long. The processes share the monotonic clock, so they start together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from benchmarks.measure import Contender, Timings

_AHEAD_SECONDS = 0.02
_CHUNK_SECONDS = 0.001
_START_SECONDS_MAX = 60

Build = Callable[..., list[Contender]]


@dataclass(frozen=True)
class Order:
    """Which contender to run, on which key, when (monotonic) and how long; and whether to count grants."""

    name: str
    key: str
    start: float
    seconds: float
    counting: bool


@dataclass(frozen=True)
class Work:
    """What one process did, and the times of its first and its last decision."""

    decisions: int
    granted: int
    first: float
    last: float


class Pair:
    """Two processes with the contenders that ``build(*arguments)`` returns."""

    def __init__(self, build: Build, *arguments: Any) -> None:
        context = get_context("spawn")  # started independently, as workers are
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, build, arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Pair:
        for pipe in self._pipes:
            if not pipe.poll(_START_SECONDS_MAX):
                raise RuntimeError("a worker process did not start")
            pipe.recv()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # which ends the worker
        for process in self._processes:
            process.join(5)
            process.kill()
            process.join()

    def run(self, name: str, key: str, seconds: float, *, counting: bool = False) -> list[Work]:
        """Run a contender in both processes at once."""
        order = Order(name, key, time.monotonic() + _AHEAD_SECONDS, seconds, counting)
        for pipe in self._pipes:
            pipe.send(order)
        return [pipe.recv() for pipe in self._pipes]

    def speed(self, name: str, key: str, seconds: float) -> float:
        """Return the decisions per second of both together."""
        return sum(work.decisions / (work.last - work.first) for work in self.run(name, key, seconds))


def compare_in_pair(
    build: Build, arguments: tuple[Any, ...], key: str, rounds: int, slot_seconds: float
) -> Timings:
    """Time all contenders in turns, each in both processes at once."""
    names = [contender.name for contender in build(*arguments)]
    timings = Timings(names)
    with Pair(build, *arguments) as pair:
        for name in names:
            pair.run(name, key, slot_seconds)
        for _ in range(max(3, rounds)):
            for name in names:
                timings.rates[name].append(pair.speed(name, key, slot_seconds))
    return timings


def _serve(pipe: Connection, build: Build, arguments: tuple[Any, ...]) -> None:
    contenders = {contender.name: contender for contender in build(*arguments)}
    pipe.send("ready")
    while True:
        try:
            order: Order = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        contender = contenders[order.name]
        pipe.send(_count_grants(contender, order) if order.counting else _count_decisions(contender, order))


def _count_decisions(contender: Contender, order: Order) -> Work:
    """Decide as fast as possible, and read the clock about once a millisecond."""
    decide, key = contender.decide, order.key
    chunk, made = 1, 0
    _wait_until(order.start)
    first = last = time.monotonic()
    while last < first + order.seconds:
        before = last
        for _ in range(chunk):
            decide(key)
        made += chunk
        last = time.monotonic()
        if last - before < _CHUNK_SECONDS / 2:
            chunk *= 2
    return Work(made, 0, first, last)


def _count_grants(contender: Contender, order: Order) -> Work:
    """Count the grants among all decisions."""
    decide, granted, key = contender.decide, contender.granted, order.key
    made = allowed = 0
    _wait_until(order.start)
    first = last = time.monotonic()
    while last < first + order.seconds:
        allowed += granted(decide(key))
        made += 1
        last = time.monotonic()
    return Work(made, allowed, first, last)


def _wait_until(start: float) -> None:
    time.sleep(max(0.0, start - time.monotonic() - 0.001))
    while time.monotonic() < start:
        pass
