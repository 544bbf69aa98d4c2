"""A round trip just below the deadline, for ten seconds; ``tests/soak`` runs a minute."""

from __future__ import annotations

from tests.outages.latency import assert_steady, run_far_away


def test_fleet__round_trips_of_40_ms__falls_back_at_most_once() -> None:
    assert_steady(run_far_away(10.0), fallbacks_max=1)
