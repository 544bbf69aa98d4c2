"""The limit holds through several faults: the short form of ``tests/soak/test_outages.py``."""

from __future__ import annotations

from tests.outages.promises import assert_promises
from tests.outages.scenario import KILLED, SLOWED, STOPPED, run_faults


def test_fleet__server_killed_stopped_and_slowed__keeps_the_limit() -> None:
    faults = [(KILLED, 2.0), (STOPPED, 1.5), (SLOWED, 1.5)]
    assert_promises(run_faults(faults, capacity=10, lead=0.5))
