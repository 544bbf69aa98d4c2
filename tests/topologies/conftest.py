"""Clusters and sentinels of each installed server program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import SERVERS

from comporta.testing import Cluster


@pytest.fixture(scope="package", params=sorted(SERVERS))
def program(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture(scope="package")
def cluster(program: str) -> Iterator[Cluster]:
    """Yield three primaries that all tests share; each leaves them as it found them."""
    with Cluster(3, program) as cluster:
        yield cluster
