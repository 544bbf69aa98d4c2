"""Histories of real processes are linearizable: the pure steps, one after the other, explain every reply."""

from __future__ import annotations

import pytest
from tests.histories.linearizability import is_linearizable
from tests.histories.recording import (
    PROCESSES,
    check_limit,
    check_permits,
    check_sliding_window,
    limit_specification,
    record_sliding_window,
)
from tests.support import SOAK

ROUNDS = 100 if SOAK else 5
"""How many histories each of the ten tests verifies: 1,000 in a soak test."""


@pytest.mark.parametrize("strategy", ["token_bucket", "leaky_bucket", "fixed_window"])
def test_limit__three_processes__every_history_is_linearizable(state: str, strategy: str) -> None:
    check_limit(state, strategy, ROUNDS, seed=1)


def test_sliding_window__three_processes__every_history_is_linearizable(state: str) -> None:
    """On a server at the moments that it reports: its log would contain an unknown time for each grant."""
    if state.startswith("shared:"):
        check_limit(state, "sliding_window", ROUNDS, seed=1)
    else:
        check_sliding_window(state, ROUNDS, seed=1)


@pytest.mark.parametrize("state", ["valkey"], indirect=True)
def test_sliding_window__recorded_with_one_grant_too_many__is_not_linearizable(state: str) -> None:
    """Add a grant at the moment at which a recorded one used up the limit."""
    specification = limit_specification("sliding_window")
    rejected = 0
    for history in record_sliding_window(state, 30, "too-many"):
        assert is_linearizable(history, specification)
        for call in history:
            if call.request[0] == "decide" and call.reply[:2] == [True, 0]:
                another = call._replace(process=PROCESSES, request=("acquire", 1), reply=True)
                assert not is_linearizable([*history, another], specification)
                assert is_linearizable([*history, another._replace(reply=False)], specification)
                rejected += 1
    assert rejected


def test_permits__three_processes__every_history_is_linearizable(state: str) -> None:
    check_permits(state, ROUNDS, seed=1)
