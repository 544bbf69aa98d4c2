"""The summary of an upstream, and its sentence that says why and until when."""

from __future__ import annotations

from typing import Any

import pytest

from comporta.breaker.admission import BreakerState, ProbeState
from comporta.breaker.config import BreakerConfig
from comporta.fleet.summary import (
    HOLDERS_MAX,
    fleet_reasons,
    status_reasons,
    status_sentence,
    upstream_summary,
)
from comporta.limits.decision import Stats
from comporta.upstream.health import LimitState, UpstreamState

AT_14_03_20 = 1_800_021_800.0
FIFTY = BreakerConfig(50, probes=3)


def breaker_state(phase: str = "closed", **others: Any) -> BreakerState:
    defaults: dict[str, Any] = {
        "failures": 0,
        "degraded": phase == "open",
        "degraded_until": None,
        "phase": phase,
        "reason": "",
        "since": None,
        "probes": (),
        "forced": None,
        "share": 1.0,
        "fallback": None,
    }
    return BreakerState(**{**defaults, **others})


def upstream_state(breaker: BreakerState | None = None, **others: Any) -> UpstreamState:
    paused = others.pop("paused", 0.0)
    defaults: dict[str, Any] = {
        "limit": 10.0,
        "original": 10.0,
        "calls_in_flight": None,
        "retries_last_minute": None,
        "fallback": None,
        "holders": None,
    }
    return UpstreamState("pncp", breaker, Stats(7, 3, 10, None, paused, 10), **{**defaults, **others})


def probes(*owners: str) -> tuple[ProbeState, ...]:
    return tuple(ProbeState(owner, 1.0) for owner in owners)


@pytest.mark.parametrize(
    ("state", "config", "sentence"),
    [
        (upstream_state(), None, "No breaker: calls pass."),
        (upstream_state(breaker_state()), FIFTY, "Closed: calls pass."),
        (upstream_state(breaker_state(), configured=10.0), FIFTY, "Closed: calls pass."),
        (
            upstream_state(breaker_state(), limit_text="3/s burst 5", configured_text="10/s"),
            FIFTY,
            "An operator set the limit to 3/s burst 5 (10/s is configured).",
        ),
        (
            upstream_state(breaker_state(failures=1)),
            FIFTY,
            "Closed: calls pass; 1 failure in a row, it opens at 50.",
        ),
        (upstream_state(breaker_state(failures=2)), None, "Closed: calls pass; 2 failures in a row."),
        (
            upstream_state(breaker_state("open", failures=50, reason="503", degraded_until=AT_14_03_20)),
            FIFTY,
            "Open until 14:03:20 UTC: 50 failures in a row, the last: HTTP 503.",
        ),
        (upstream_state(breaker_state("open", failures=50)), FIFTY, "Open: 50 failures in a row."),
        (
            upstream_state(
                breaker_state("open", failures=2, reason="slower than 2 s", degraded_until=AT_14_03_20)
            ),
            FIFTY,
            "Open until 14:03:20 UTC: slower than 2 s.",
        ),
        (upstream_state(breaker_state("open")), None, "Open."),
        (upstream_state(breaker_state("half_open")), FIFTY, "Half-open: the next call is a probe."),
        (
            upstream_state(breaker_state("half_open", probes=probes("web-1:4411"))),
            FIFTY,
            "Half-open: 1 of 3 probes out, held by web-1:4411.",
        ),
        (
            upstream_state(breaker_state("half_open", probes=probes("web-1:4411"))),
            None,
            "Half-open: 1 probe out, held by web-1:4411.",
        ),
        (
            upstream_state(breaker_state("half_open", probes=probes("b:1", "a:1", "b:1"))),
            FIFTY,
            "Half-open: 3 of 3 probes out, held by a:1, b:1.",
        ),
        (
            upstream_state(breaker_state("ramp", share=0.4)),
            FIFTY,
            "Closing step by step: 40 % of calls pass.",
        ),
        (
            upstream_state(breaker_state("open", forced="open", reason="maintenance.")),
            FIFTY,
            "Held open by an operator: maintenance.",
        ),
        (upstream_state(breaker_state(forced="closed")), FIFTY, "Held closed by an operator."),
        (
            upstream_state(breaker_state(forced="closed", failures=16, reason="503")),
            FIFTY,
            "Held closed by an operator despite 16 failures in a row: HTTP 503.",
        ),
        (
            upstream_state(breaker_state(), paused=12.2),
            FIFTY,
            "Paused for 12 s, as requested by the upstream or an operator.",
        ),
        (
            upstream_state(breaker_state(), paused=0.01),
            FIFTY,
            "Paused for 1 s, as requested by the upstream or an operator.",
        ),
        (
            upstream_state(breaker_state(), paused=240.0),
            FIFTY,
            "Paused for 4 min, as requested by the upstream or an operator.",
        ),
        (
            upstream_state(paused=7200.0),
            None,
            "Paused for 2.0 h, as requested by the upstream or an operator.",
        ),
        (
            upstream_state(breaker_state(), limit=6.0),
            FIFTY,
            "Slowed down to 6.0 of 10.0 a second: the upstream refused calls.",
        ),
    ],
)
def test_status_sentence__any_health__says_why_and_until_when(
    state: UpstreamState, config: BreakerConfig | None, sentence: str
) -> None:
    assert status_sentence(state, config) == sentence


def test_summary__upstream_with_all_policies__has_every_field() -> None:
    breaker = breaker_state(
        "half_open", failures=50, since=5.0, probes=probes("h:1"), share=0.0, reason="HTTP"
    )
    state = upstream_state(breaker, calls_in_flight=3, holders={"h:1": 1, "h:2": 2})
    assert upstream_summary(state, {"calls": 1}, breaker=FIFTY, in_flight_max=10) == {
        "name": "pncp",
        "phase": "half-open",
        "reason": "HTTP",
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
        "burst": 10,
        "strategy": "token_bucket",
        "limit_text": "",
        "configured_text": "",
        "paused": 0.0,
        "in_flight": 3,
        "in_flight_max": 10,
        "shadow": [],
        "limits": [],
        "holders": {"h:2": 2, "h:1": 1},
        "in_words": "Half-open: 1 of 3 probes out, held by h:1.",
        "minute": {"calls": 1},
    }


def test_summary__upstream_with_only_a_limit__has_the_same_fields() -> None:
    full = upstream_summary(upstream_state(breaker_state()), {}, breaker=FIFTY, in_flight_max=1)
    bare = upstream_summary(upstream_state(), {})
    assert list(bare) == list(full)
    assert bare["phase"] is None
    assert bare["threshold"] is None
    assert bare["share"] == 1.0


def test_summary__more_holders_than_the_bound__names_the_largest() -> None:
    holders = upstream_summary(upstream_state(holders={f"h:{number}": number for number in range(100)}), {})[
        "holders"
    ]
    assert len(holders) == HOLDERS_MAX
    assert min(holders.values()) == 100 - HOLDERS_MAX


def test_summary__several_limits__has_each_by_name() -> None:
    summary = upstream_summary(upstream_state(limits=(_tokens("1000/minute"),)), {})
    assert summary["limits"] == [
        {
            "name": "tokens",
            "tokens": 400,
            "capacity": 1000,
            "limit": 8.0,
            "original": 16.0,
            "configured": 16.0,
            "burst": 1000,
            "strategy": "token_bucket",
            "limit_text": "1000/minute",
            "configured_text": "1000/minute",
        }
    ]


def _tokens(text: str) -> LimitState:
    """Return a further limit, which is 1000/minute unless an operator changed it."""
    stats = Stats(400, 600, 1000, None, 0.0, 1000)
    return LimitState("tokens", stats, 8.0, 16.0, 16.0, limit_text=text, configured_text="1000/minute")


def test_status_sentence__override_of_a_further_limit__names_it() -> None:
    state = upstream_state(limits=(_tokens("600/minute"),))
    assert status_sentence(state) == (
        "An operator set the limit tokens to 600/minute (1000/minute is configured)."
    )
    assert status_reasons(upstream_summary(state, {})) == [
        "an operator changed the limit tokens of pncp to 600/minute"
    ]


@pytest.mark.parametrize(
    ("state", "reasons"),
    [
        (upstream_state(), []),
        (upstream_state(breaker_state(failures=3)), []),
        (upstream_state(breaker_state("open")), ["pncp is open"]),
        (upstream_state(breaker_state("ramp")), ["pncp is half-open"]),
        (upstream_state(breaker_state("open", forced="open")), ["pncp is held open by an operator"]),
        (upstream_state(breaker_state(forced="closed")), ["pncp is held closed by an operator"]),
        (upstream_state(paused=3.0, limit=5.0), ["pncp is paused", "pncp is slowed down"]),
        (
            upstream_state(limit_text="10/s burst 3", configured_text="10/s"),
            ["an operator changed the limit of pncp to 10/s burst 3"],
        ),
    ],
)
def test_status_reasons__any_override_or_degradation__is_a_reason_of_its_own(
    state: UpstreamState, reasons: list[str]
) -> None:
    assert status_reasons(upstream_summary(state, {})) == reasons


def test_fleet_reasons__open_circuit_after_others__comes_first() -> None:
    slow = upstream_summary(upstream_state(breaker_state("half_open")), {})
    dead = upstream_summary(upstream_state(breaker_state("open", degraded=True)), {})
    reasons = fleet_reasons([{**slow, "name": "a"}, {**dead, "name": "z"}])
    assert reasons == ["z is open", "a is half-open"]


def test_status_reasons__open_in_shadow_mode__says_that_calls_pass() -> None:
    dead = upstream_summary(upstream_state(breaker_state("open", degraded=True), shadow=("breaker",)), {})
    assert status_reasons({**dead, "name": "z"}) == ["z is open in shadow mode: calls pass"]
