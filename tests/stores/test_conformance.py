"""Every store does what a store must do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from tests.support import memory_store, redis_store, shared_store

from comporta.stores.base import Store
from comporta.testing import ManualClock, Server, StoreConformance


class TestMemory(StoreConformance):
    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        return memory_store(clock)


class TestShared(StoreConformance):
    def store(self, clock: ManualClock) -> AbstractContextManager[Store]:
        return shared_store(clock)


class TestRedis(StoreConformance):
    records_by_own_clock = True

    @pytest.fixture(autouse=True)
    def _on(self, server: Server) -> None:
        self.server = server

    @contextmanager
    def store(self, clock: ManualClock) -> Iterator[Store]:
        with redis_store(self.server, clock) as store:
            yield store
