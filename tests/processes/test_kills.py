"""A process killed in the middle of an update leaves the old state or the new one, never a mix.

Tested at random moments under load, and at every step of every operation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state, run_together, shared_url, start_workers
from tests.processes.kill_points import KILL_CASES
from tests.processes.kill_scenario import kill_under_load


def test_shared__workers_killed_under_load__others_continue_and_state_is_intact(
    shared: str, tmp_path: Path
) -> None:
    print(kill_under_load(shared, tmp_path, kills=15))  # noqa: T201


@pytest.mark.parametrize("case", KILL_CASES)
def test_shared__killed_at_any_line__leaves_the_old_state_or_the_new(case: str) -> None:
    name = new_state_name()
    try:
        with start_workers(
            1, "die_at_each_step", url=shared_url(name, lock_timeout=1), case=case, opcodes=False
        ) as workers:
            [result] = run_together(workers)
    finally:
        remove_shared_state(name)
    assert result["problems"] == []
    assert result["deaths"] >= 10, "no process was killed: the test itself is broken"
    print(result)  # noqa: T201
