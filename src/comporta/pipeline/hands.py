"""Threads for what blocks, while an event loop goes on; they keep no program from ending.

The standard library's pool is joined when the interpreter ends: one step that hangs, and a program that was
told twice to stop stays for ever. These are daemons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar

from comporta.threads import Run

T = TypeVar("T")

_Job = tuple["Future[Any]", Callable[[], Any]]


class Hands:
    """``most`` threads at the most, started as they are needed. What finds none free waits in line."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._hired = 0
        self._free = 0  # less than none: so many wait in line

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Have it done; cancelling what this returns drops it, unless it is under way."""
        future: Future[T] = Future()
        if self._is_short() and not Run().start(self._life, name=self._name):
            self._count(hired=-1, free=-1)
            raise RuntimeError(f"no thread can be had for {self._name}")
        self._count(free=-1)
        self._jobs.put((future, work))
        return asyncio.wrap_future(future)

    def close(self) -> None:
        """Let them go, each after what it has in hand; nobody waits for that."""
        for _ in range(self._hired):
            self._jobs.put(None)

    def _is_short(self) -> bool:
        """Whether one more is needed and may be had: it is counted at once."""
        with self._lock:
            short = self._free <= 0 and self._hired < self._most
            self._hired += short
            self._free += short
        return short

    def _count(self, *, hired: int = 0, free: int = 0) -> None:
        with self._lock:
            self._hired += hired
            self._free += free

    def _life(self) -> None:
        while (job := self._jobs.get()) is not None:
            _do(*job)
            self._count(free=1)


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:
        future.set_exception(error)
