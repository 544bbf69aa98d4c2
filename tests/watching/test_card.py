"""How an upstream stands, in one sentence that says why and until when."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.breaker.admission import BreakerState, ProbeState
from comporta.breaker.config import BreakerConfig
from comporta.limits.decision import Stats
from comporta.upstream.standing import UpstreamState
from comporta.watching.card import HOLDERS_MAX, card, in_words

AT_14_03_20 = 1_800_021_800.0
FIFTY = BreakerConfig(50, probes=3)


def circuit(phase: str = "closed", **others: Any) -> BreakerState:
    given: dict[str, Any] = {
        "failures": 0,
        "degraded": phase == "open",
        "degraded_until": None,
        "phase": phase,
        "why": "",
        "since": None,
        "probes": (),
        "forced": None,
        "share": 1.0,
        "fallback": None,
    }
    return BreakerState(**{**given, **others})


def standing(breaker: BreakerState | None = None, **others: Any) -> UpstreamState:
    paused = others.pop("paused", 0.0)
    given: dict[str, Any] = {
        "limit": 10.0,
        "original": 10.0,
        "calls_in_flight": None,
        "retries_last_minute": None,
        "fallback": None,
        "holders": None,
    }
    return UpstreamState("pncp", breaker, Stats(7, 3, 10, None, paused, 10), **{**given, **others})


def probes(*owners: str) -> tuple[ProbeState, ...]:
    return tuple(ProbeState(owner, 1.0) for owner in owners)


@pytest.mark.parametrize(
    ("state", "config", "said"),
    [
        (standing(), None, "No breaker: calls pass."),
        (standing(circuit()), FIFTY, "Closed: calls pass."),
        (standing(circuit(), configured=10.0), FIFTY, "Closed: calls pass."),
        (
            standing(circuit(), limit=3.0, original=3.0, configured=10.0),
            FIFTY,
            "An operator set the limit to 3 a second; 10 is configured.",
        ),
        (
            standing(circuit(failures=1)),
            FIFTY,
            "Closed: calls pass; 1 failure in a row, it opens at 50.",
        ),
        (standing(circuit(failures=2)), None, "Closed: calls pass; 2 failures in a row."),
        (
            standing(circuit("open", failures=50, why="503", degraded_until=AT_14_03_20)),
            FIFTY,
            "Open until 14:03:20: 50 failures in a row, the last: HTTP 503.",
        ),
        (standing(circuit("open", failures=50)), FIFTY, "Open: 50 failures in a row."),
        (
            standing(circuit("open", failures=2, why="slower than 2 s", degraded_until=AT_14_03_20)),
            FIFTY,
            "Open until 14:03:20: slower than 2 s.",
        ),
        (standing(circuit("open")), None, "Open."),
        (standing(circuit("half_open")), FIFTY, "Half-open: the next call is a probe."),
        (
            standing(circuit("half_open", probes=probes("web-1:4411"))),
            FIFTY,
            "Half-open: 1 of 3 probes out, held by web-1:4411.",
        ),
        (
            standing(circuit("half_open", probes=probes("web-1:4411"))),
            None,
            "Half-open: 1 probe out, held by web-1:4411.",
        ),
        (
            standing(circuit("half_open", probes=probes("b:1", "a:1", "b:1"))),
            FIFTY,
            "Half-open: 3 of 3 probes out, held by a:1, b:1.",
        ),
        (standing(circuit("ramp", share=0.4)), FIFTY, "Closing step by step: 40 % of calls pass."),
        (
            standing(circuit("open", forced="open", why="maintenance.")),
            FIFTY,
            "Held open by an operator: maintenance.",
        ),
        (standing(circuit(forced="closed")), FIFTY, "Held closed by an operator."),
        (
            standing(circuit(), paused=12.2),
            FIFTY,
            "Paused for 12 s, as the upstream or an operator asked for.",
        ),
        (
            standing(circuit(), paused=0.01),
            FIFTY,
            "Paused for 1 s, as the upstream or an operator asked for.",
        ),
        (
            standing(circuit(), paused=240.0),
            FIFTY,
            "Paused for 4 min, as the upstream or an operator asked for.",
        ),
        (standing(paused=7200.0), None, "Paused for 2.0 h, as the upstream or an operator asked for."),
        (
            standing(circuit(), limit=6.0),
            FIFTY,
            "Slowed down to 6.0 of 10.0 a second: the upstream refused calls.",
        ),
    ],
)
def test_words__any_standing__say_why_and_until_when(
    state: UpstreamState, config: BreakerConfig | None, said: str
) -> None:
    assert in_words(state, config) == said


def test_card__of_an_upstream_with_everything__has_all_figures() -> None:
    breaker = circuit("half_open", failures=50, since=5.0, probes=probes("h:1"), share=0.0, why="HTTP")
    state = standing(breaker, calls_in_flight=3, holders={"h:1": 1, "h:2": 2})
    assert card(state, {"calls": 1}, breaker=FIFTY, in_flight_max=10) == {
        "name": "pncp",
        "phase": "half-open",
        "why": "HTTP",
        "since": 5.0,
        "until": None,
        "forced": None,
        "failures": 50,
        "threshold": 50,
        "share": 0.0,
        "probes": ["h:1"],
        "tokens": 7,
        "capacity": 10,
        "limit": 10.0,
        "original": 10.0,
        "configured": None,
        "paused": 0.0,
        "in_flight": 3,
        "in_flight_max": 10,
        "holders": {"h:2": 2, "h:1": 1},
        "in_words": "Half-open: 1 of 3 probes out, held by h:1.",
        "minute": {"calls": 1},
    }


def test_card__of_an_upstream_with_a_limit_only__has_the_same_fields() -> None:
    full = card(standing(circuit()), {}, breaker=FIFTY, in_flight_max=1)
    bare = card(standing(), {})
    assert list(bare) == list(full)
    assert bare["phase"] is None
    assert bare["threshold"] is None
    assert bare["share"] == 1.0


def test_card__more_holders_than_it_names__names_those_with_the_most() -> None:
    found = card(standing(holders={f"h:{number}": number for number in range(100)}), {})["holders"]
    assert len(found) == HOLDERS_MAX
    assert min(found.values()) == 100 - HOLDERS_MAX
