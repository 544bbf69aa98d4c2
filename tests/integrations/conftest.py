"""Fixtures of the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url


@pytest.fixture
def shared_state() -> Iterator[str]:
    """Provide the URL of an empty state that the processes of this machine share."""
    name = new_state_name()
    yield shared_url(name)
    remove_shared_state(name)
