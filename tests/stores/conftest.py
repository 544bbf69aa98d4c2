"""A store of each kind, by whatever clock a test wants."""

from __future__ import annotations

import pytest
from tests.support import Opens, memory_store, redis_store, shared_store

from comporta.testing import Server


@pytest.fixture(params=["memory", "shared", "server"])
def opens(request: pytest.FixtureRequest) -> Opens:
    if request.param == "server":
        server: Server = request.getfixturevalue("valkey")
        return lambda clock: redis_store(server, clock)
    return memory_store if request.param == "memory" else shared_store
