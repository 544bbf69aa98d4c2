"""The limit holds while the server dies and comes back: the short form of ``tests/soak/test_outages.py``."""

from __future__ import annotations

from tests.outages.promises import hold_to_promises
from tests.outages.story import KILLED, SLOWED, STOPPED, play


def test_fleet__server_killed_stopped_and_slowed_under_load__keeps_the_limit_and_lets_nobody_down() -> None:
    faults = [(KILLED, 2.0), (STOPPED, 1.5), (SLOWED, 1.5)]
    hold_to_promises(play(faults, capacity=10, lead=0.5, health=1.5))
