"""Stores that several processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url

from comporta.testing import Server


@pytest.fixture(params=["shared", "redis"])
def state(request: pytest.FixtureRequest, valkey: Server) -> Iterator[str]:
    """Return the URL of an empty store of each engine."""
    if request.param == "redis":
        valkey.command("FLUSHALL")
        yield f"{valkey.url}?timeout=5"
        return
    name = new_state_name()
    yield shared_url(name)
    remove_shared_state(name)
