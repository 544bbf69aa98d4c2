"""Clusters and sentinels of each kind of server there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import SERVERS

from comporta.testing import Cluster

KINDS = sorted(SERVERS)


@pytest.fixture(scope="session", params=KINDS)
def program(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture(scope="session")
def cluster(program: str) -> Iterator[Cluster]:
    """Give three primaries that all tests share, and leave as they found them."""
    with Cluster(3, program) as cluster:
        yield cluster
