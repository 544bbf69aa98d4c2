"""Clusters and sentinels of each kind of server there is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import SERVERS

from comporta.testing import Cluster, find_servers

TLS = find_servers(tls=True)


@pytest.fixture(scope="session", params=sorted(SERVERS))
def program(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture(scope="session", params=sorted(TLS) or ["none"])
def tls_program(request: pytest.FixtureRequest) -> str:
    """Give each kind of server that speaks TLS itself; the wheels' do not.

    That comporta speaks it is tried everywhere, by ``tests/stores/test_tls.py``.
    """
    if request.param not in TLS:
        pytest.skip("no server here was built to speak TLS")
    return TLS[request.param]


@pytest.fixture(scope="session")
def cluster(program: str) -> Iterator[Cluster]:
    """Give three primaries that all tests share, and leave as they found them."""
    with Cluster(3, program) as cluster:
        yield cluster
