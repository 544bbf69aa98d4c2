"""States for commands to look at."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator

import pytest

from comporta.stores.folder import path_of
from comporta.testing import Server


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state but the one a test names."""
    for name in ("COMPORTA_STATE", "REDIS_URL", "COMPORTA_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Give a server whose settings a test may change."""
    with Server() as started:
        yield started


@pytest.fixture
def shared_name() -> Iterator[str]:
    """Give a name for ``shared://`` that nobody uses, and remove what is made of it."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    shutil.rmtree(path_of(name), ignore_errors=True)
