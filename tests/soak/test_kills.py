"""Two hundred kills under load, and a death at every opcode of every operation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.fleet import new_name, remove, shared_url, started, together
from tests.processes.killing import kill_under_load
from tests.processes.mortal import ACTS


@pytest.mark.parametrize("seed", range(10))
def test_shared__killed_20_times_under_load__the_others_go_on_and_nothing_is_torn(
    shared: str, tmp_path: Path, seed: int
) -> None:
    print(kill_under_load(shared, tmp_path, kills=20, seed=seed))  # noqa: T201


@pytest.mark.parametrize("act", ACTS)
def test_shared__killed_at_any_opcode__leaves_the_old_state_or_the_new(act: str) -> None:
    name = new_name()
    try:
        with started(1, "mortal", url=shared_url(name, lock_timeout=1), act=act, opcodes=True) as workers:
            [answer] = together(workers)
    finally:
        remove(name)
    assert answer["problems"] == []
    assert answer["deaths"] >= 100, "nothing was killed: the test itself is broken"
    print(answer)  # noqa: T201
