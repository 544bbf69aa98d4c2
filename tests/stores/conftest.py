"""Empty stores of each engine, on a clock that the test chooses."""

from __future__ import annotations

import pytest
from tests.support import StoreOpener, memory_store, redis_store, shared_store

from comporta.testing import Server


@pytest.fixture(params=["memory", "shared", "server"])
def open_store(request: pytest.FixtureRequest) -> StoreOpener:
    if request.param == "server":
        server: Server = request.getfixturevalue("valkey")
        return lambda clock: redis_store(server, clock)
    return memory_store if request.param == "memory" else shared_store
