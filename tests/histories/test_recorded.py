"""Histories of real processes are linearizable: the pure steps, one after the other, explain every reply."""

from __future__ import annotations

import pytest
from tests.histories.recording import check_limit, check_permits
from tests.support import SOAK

ROUNDS = 112 if SOAK else 5
"""How many histories each of the nine tests verifies: 1,000 in a soak test."""


@pytest.mark.parametrize("strategy", ["token_bucket", "leaky_bucket", "fixed_window"])
def test_limit__three_processes__every_history_is_linearizable(state: str, strategy: str) -> None:
    check_limit(state, strategy, ROUNDS, seed=1)


@pytest.mark.parametrize("state", ["shared"], indirect=True)
def test_sliding_window__three_processes__every_history_is_linearizable(state: str) -> None:
    """Not on a server, whose moments are unknown: its log would contain an unknown time for each grant."""
    check_limit(state, "sliding_window", ROUNDS, seed=1)


def test_permits__three_processes__every_history_is_linearizable(state: str) -> None:
    check_permits(state, ROUNDS, seed=1)
