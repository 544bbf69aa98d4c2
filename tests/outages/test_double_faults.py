"""Faults that follow each other, or keep probes waiting, in a fleet of real processes on a real server."""

from __future__ import annotations

import pytest
from tests.outages.double_faults import check_excess, hang_twice, lose_packets, lose_requests


@pytest.mark.parametrize("workers", [4, 8])
def test_fleet__server_hangs_again_after_the_return__grants_a_token_per_worker_too_many(workers: int) -> None:
    check_excess(hang_twice, workers)


@pytest.mark.parametrize("workers", [4, 8])
def test_fleet__packets_are_lost__grants_at_most_a_token_per_worker_too_many(workers: int) -> None:
    check_excess(lose_packets, workers)


@pytest.mark.parametrize("workers", [4, 8])
def test_fleet__requests_are_lost__grants_at_most_a_token_per_worker_too_many(workers: int) -> None:
    check_excess(lose_requests, workers)
