"""Every engine passes the conformance suite, and so does one with the required methods only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest
from tests.support import memory_store, redis_store, shared_store

from comporta.errors import StateFullError
from comporta.stores.base import Operation, Store
from comporta.stores.memory import MemoryStore
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ManualClock, Server, StoreConformance

R = TypeVar("R")


class TestMemory(StoreConformance):
    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        return memory_store(clock)


class TestShared(StoreConformance):
    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        return shared_store(clock)


class TestRedis(StoreConformance):
    records_expire_by_own_clock = True

    @pytest.fixture(autouse=True)
    def _use_server(self, server: Server) -> None:
        self.server = server

    @contextmanager
    def store(self, clock: ManualClock) -> Iterator[Store]:
        with redis_store(self.server, clock) as store:
            yield store


class MinimalStore(Store):
    """An engine that implements the two required methods only."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._backend = MemoryStore(clock)

    def apply(self, operation: Operation[R]) -> R:
        return self._backend.apply(operation)

    async def apply_async(self, operation: Operation[R]) -> R:
        return self._backend.apply(operation)


class TestMinimal(StoreConformance):
    lists_records = False

    @contextmanager
    def store(self, clock: ManualClock) -> Iterator[Store]:
        yield MinimalStore(clock)


def test_store__required_methods_only__has_working_defaults() -> None:
    store = MinimalStore(ManualClock())
    assert store.shared
    assert store.apply_many([WriteRecord("s", "k", b"x", None), ReadRecord("s", "k")]) == [True, b"x"]
    assert store.entries("s") == asyncio.run(store.entries_async("s")) == {}
    assert store.primary is store
    assert (store.worker_count, store.fallback, store.memory, store.large_states_max) == (None,) * 4
    assert not store.start_heartbeat()
    store.probe()
    store.poll_soon()
    asyncio.run(store.aclose())
    store.close()


def test_apply_many__error_of_one_key__is_returned_in_its_place() -> None:
    class FullStore(MinimalStore):
        def apply(self, operation: Operation[R]) -> R:
            if operation.state_keys[0].key == "new":
                raise StateFullError("no room")
            return super().apply(operation)

    store = FullStore(ManualClock())
    replies = store.apply_many([ReadRecord("s", "new"), ReadRecord("s", "k")])
    assert [type(reply) for reply in replies] == [StateFullError, type(None)]
