"""What several tests need: empty stores of each kind, on a clock moved by hand."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from blockbuster import blockbuster_ctx

from comporta.clock import MONOTONIC, Clock
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.redis import RedisStore
from comporta.stores.shared import SharedStore
from comporta.testing import Server

SOAK = bool(os.environ.get("COMPORTA_SOAK"))
"""Whether everything is to be tried, however long it takes."""

PATIENCE_SECONDS = 60.0


def examples(most: int) -> int:
    """Return how many examples Hypothesis is to try: all of them in a soak, else a third."""
    return most if SOAK else most // 3


class Late(AssertionError):  # noqa: N818 - it fails a test, it is not raised to anybody
    """Something came later than promised: by our fault, or by that of a machine that did not run us.

    A test that ends with it is tried anew, with all its fixtures (``conftest.py``): what is late for a reason
    is late each time.
    """


def hold_to(seconds: float, most: float, what: object = "it") -> None:
    """Hold something to the time promised for it."""
    if seconds > most:
        raise Late(f"{what} took {seconds:.3f} s, at most {most:g} s are promised")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Hold a block to the time promised for it."""
    began = time.monotonic()
    yield
    hold_to(time.monotonic() - began, seconds)


MakesStore = Callable[[Clock | None], AbstractContextManager[Store]]


Opens = Callable[[Clock], AbstractContextManager[Store]]
"""Opens a store that goes by a clock."""


def comes_true(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.01)


@contextmanager
def memory_store(clock: Clock | None = None) -> Iterator[MemoryStore]:
    store = MemoryStore(clock or MONOTONIC)
    yield store
    store.close()


@contextmanager
def shared_store(clock: Clock | None = None, keys: int = 1024) -> Iterator[SharedStore]:
    store = SharedStore(f"test-{uuid.uuid4().hex}", clock or MONOTONIC, keys)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(store.path)


@contextmanager
def redis_store(server: Server, clock: Clock | None = None) -> Iterator[RedisStore]:
    command(server, "FLUSHALL")
    store = RedisStore(server.url, timeout=5.0, clock=clock)
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
def store_by_hand(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    """Open the kind of store that a fixture is parametrised with, on a clock moved by hand."""
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
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes, for as short as can be.

    That goes for what the test run itself is written to, so it must not be in force when a test ends.
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
def nothing_blocks() -> Iterator[None]:
    """Have whatever blocks on an event loop raise an error there; coverage may wait for a lock of its own."""
    with blockbuster_ctx(None) as watched:
        for function in watched.functions.values():
            function.can_block_in("comporta/database/sqlite.py", {"glance"})
            function.can_block_in("coverage/collector.py", {"lock_data", "unlock_data"})
        yield
