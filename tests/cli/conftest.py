"""States for the commands to inspect."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator

import pytest

from comporta.stores.shared.directory import directory_path
from comporta.testing import Server


@pytest.fixture(autouse=True)
def _no_default_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of a default state: a test names its own."""
    for name in ("COMPORTA_STATE", "REDIS_URL", "COMPORTA_APP"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """Yield a server whose settings a test may change."""
    with Server() as server:
        yield server


@pytest.fixture
def shared_name() -> Iterator[str]:
    """Yield an unused name for ``shared://``, and remove its directory afterwards."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    shutil.rmtree(directory_path(name), ignore_errors=True)
