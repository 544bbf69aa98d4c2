"""A process killed in the middle of an update leaves the old state or the new, never half of one.

Once by chance, under load; and once at every single step of every operation.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.fleet import new_name, remove, shared_url, started, together
from tests.processes.killing import kill_under_load
from tests.processes.mortal import ACTS


def test_shared__killed_in_mid_update_under_load__the_others_go_on_and_nothing_is_torn(
    shared: str, tmp_path: Path
) -> None:
    print(kill_under_load(shared, tmp_path, kills=15))  # noqa: T201


@pytest.mark.parametrize("act", ACTS)
def test_shared__killed_at_any_step__leaves_the_old_state_or_the_new(act: str) -> None:
    name = new_name()
    try:
        with started(1, "mortal", url=shared_url(name, lock_timeout=1), act=act, opcodes=False) as workers:
            [answer] = together(workers)
    finally:
        remove(name)
    assert answer["problems"] == []
    assert answer["deaths"] >= 10, "nothing was killed: the test itself is broken"
    print(answer)  # noqa: T201
