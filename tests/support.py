"""Helpers for tests: empty stores of each kind, waiting for conditions, and limits on time and files."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateFullError
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Fallback
from comporta.stores.records import WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.store import SharedStore
from comporta.testing import Server

if TYPE_CHECKING:
    import pytest  # the jobs of worker processes use this module, and need no pytest

SOAK = bool(os.environ.get("COMPORTA_SOAK"))
"""Whether to run every case, however long it takes (``make soak``)."""

WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
POLL_SECONDS_MAX = 0.25


def max_examples(count: int) -> int:
    """Return how many examples Hypothesis tries: ``count`` in a soak test, a third of it otherwise."""
    return count if SOAK else count // 3


class Late(AssertionError):  # noqa: N818 - it fails a test; no caller catches it
    """A deadline was missed: because of a bug, or because the machine stalled.

    ``conftest.py`` decides whether to run such a test again. A bug misses the deadline every time.
    """


def assert_within(seconds: float, max_seconds: float, what: object = "it") -> None:
    """Raise :class:`Late` if something took longer than promised."""
    if seconds > max_seconds:
        raise Late(f"{what} took {seconds:.3f} s, at most {max_seconds:g} s are promised")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise :class:`Late` if the block takes longer than promised."""
    started = time.monotonic()
    yield
    assert_within(time.monotonic() - started, seconds)


@contextmanager
def loop_runner() -> Iterator[asyncio.Runner]:
    """Open an event loop. Its runner leaves the handler of SIGINT alone, which costs more than most calls."""
    with asyncio.Runner() as runner:
        runner.run = runner.get_loop().run_until_complete  # type: ignore[assignment, method-assign]
        yield runner


StoreFactory = Callable[[Clock | None], AbstractContextManager[Store]]

StoreOpener = Callable[[Clock], AbstractContextManager[Store]]
"""Opens a store that uses the given clock."""


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true, for at most 60 s."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(_poll_pause(began))
        began = time.monotonic()


async def wait_until_async(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait until the awaited condition is true, for at most 60 s."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(_poll_pause(began))
        began = time.monotonic()


def _poll_pause(began: float) -> float:
    """Return how long to wait before the next check: longer after one that used much processor time."""
    return min(max(POLL_SECONDS, 3 * (time.monotonic() - began)), POLL_SECONDS_MAX)


@contextmanager
def memory_store(clock: Clock | None = None) -> Iterator[MemoryStore]:
    store = MemoryStore(clock or MONOTONIC)
    yield store
    store.close()


@contextmanager
def shared_store(clock: Clock | None = None, memory: int = 8) -> Iterator[SharedStore]:
    store = SharedStore(f"test-{uuid.uuid4().hex}", clock or MONOTONIC, memory)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(store.path)


def fill_with_records(store: SharedStore, small: int = 0) -> None:
    """Write some small records, then large ones until no shard has room for another one."""
    for number in range(small):
        store.apply(WriteRecord("fill", f"small-{number}", b"x", None))
    number = failures = 0
    while failures < 100:
        number += 1
        try:
            store.apply(WriteRecord("fill", f"large-{number}", b"x" * 4000, None))
            failures = 0
        except StateFullError:
            failures += 1


@contextmanager
def redis_store(server: Server, clock: Clock | None = None) -> Iterator[RedisStore]:
    command(server, "FLUSHALL")
    store = RedisStore(server.url, timeout=5.0, connect_timeout=WAIT_SECONDS_MAX, clock=clock)
    try:
        yield store
    finally:
        store.close()


def command(server: Server, *words: str | int) -> bytes:
    """Send one command, as an operator would with redis-cli, and return the raw reply."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        packed = b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in (str(word).encode() for word in words))
        connection.sendall(b"*%d\r\n%s" % (len(words), packed))
        return connection.recv(65536)


@contextmanager
def store_on_clock(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    """Open the kind of store that a fixture is parametrised with, on the given clock."""
    if request.param == "memory":
        with memory_store(clock) as memory:
            yield memory
    elif request.param == "shared":
        with shared_store(clock) as shared:
            yield shared
    else:
        with redis_store(request.getfixturevalue("valkey"), clock) as redis:
            yield redis


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Prevent every file of this process from growing beyond ``size`` bytes. Keep the block short.

    The limit also applies to the files of the test run itself, so it must be over when the test ends.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@contextmanager
def fail_on_blocking_calls() -> Iterator[None]:
    """Make calls that block the event loop raise an error; coverage may wait for its own lock."""
    from blockbuster import blockbuster_ctx  # noqa: PLC0415 - not in worker processes, as above

    with blockbuster_ctx(None) as watched:
        for function in watched.functions.values():
            function.can_block_in("comporta/database/sqlite.py", {"try_read"})
            function.can_block_in("comporta/threads.py", {"start"})  # as briefly as threading.Thread.start
            function.can_block_in("coverage/collector.py", {"lock_data", "unlock_data"})
        yield


def fallback_of(store: Store) -> Fallback | None:
    """Return ``store.fallback``, which a type checker takes for constant between two assertions."""
    return store.fallback
