"""An upstream's health for pages and command lines: plain data, and one sentence. Pure.

The sentence names the most urgent condition with its reason and its end: an operator's decision, a circuit
that is not closed, a pause, a limit that is lowered or overridden. Its times are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from comporta.breaker.admission import BreakerState
    from comporta.breaker.config import BreakerConfig
    from comporta.upstream.health import LimitState, UpstreamState

HOLDERS_MAX: Final = 40
"""How many workers, those with the most permits, a summary names as holders."""

_PHASES = {"closed": "closed", "open": "open", "half_open": "half-open", "ramp": "half-open"}


def upstream_summary(
    state: UpstreamState,
    minute: Mapping[str, Any],
    *,
    breaker: BreakerConfig | None = None,
    in_flight_max: int | None = None,
) -> dict[str, Any]:
    """Return the summary of an upstream: its health, its last minute, and its limits.

    Times are Unix seconds, durations are seconds. ``phase`` is ``None`` without a breaker. ``probes`` are the
    owners of probes in flight; ``holders`` is how many permits each worker holds. ``burst`` is the capacity
    without degradation.
    """
    return {
        "name": state.name,
        **_breaker_fields(state.breaker, breaker),
        "tokens": state.limiter.tokens_available,
        "capacity": state.limiter.limit,
        "limit": state.limit,
        "original": state.original,
        "configured": state.configured,
        "burst": state.limiter.original,
        "strategy": state.strategy,
        "limit_text": state.limit_text,
        "configured_text": state.configured_text,
        "paused": state.paused,
        "in_flight": state.calls_in_flight,
        "in_flight_max": in_flight_max,
        "holders": largest_holders(state.holders or {}, HOLDERS_MAX),
        "in_words": status_sentence(state, breaker),
        "shadow": list(state.shadow),
        "limits": [_limit_fields(limit) for limit in state.limits],
        "minute": dict(minute),
    }


def fleet_reasons(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return why upstreams are not in their normal state, open circuits first."""
    ranked = sorted(summaries, key=lambda summary: summary["phase"] != "open")
    return [reason for summary in ranked for reason in status_reasons(summary)]


def status_reasons(summary: Mapping[str, Any]) -> list[str]:
    """Return why an upstream is not in its normal state: what an operator decided first, then the rest."""
    name, phase = summary["name"], summary["phase"]
    reasons = []
    if summary["forced"]:
        reasons.append(f"{name} is held {summary['forced']} by an operator")
    elif phase in ("open", "half-open"):
        is_shadow = "breaker" in summary.get("shadow", ())
        reasons.append(f"{name} is {phase}{' in shadow mode: calls pass' if is_shadow else ''}")
    if summary["paused"]:
        reasons.append(f"{name} is paused")
    if summary["limit"] < summary["original"]:
        reasons.append(f"{name} is slowed down")
    for limit in overridden_limits(summary):
        which = f"the limit {limit['name']}" if summary.get("limits") else "the limit"
        reasons.append(f"an operator changed {which} of {name} to {limit['limit_text']}")
    return reasons


def overridden_limits(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the limits of an upstream that an operator overrides: itself, if it has only one limit."""
    limits: Sequence[Mapping[str, Any]] = summary.get("limits") or [summary]
    return [
        limit
        for limit in limits
        if limit.get("configured_text") and limit.get("limit_text") != limit["configured_text"]
    ]


def _limit_fields(limit: LimitState) -> dict[str, Any]:
    """Return one of several limits, with the field names of an upstream that has only one limit."""
    return {
        "name": limit.name,
        "tokens": limit.stats.tokens_available,
        "capacity": limit.stats.limit,
        "limit": limit.limit,
        "original": limit.original,
        "configured": limit.configured,
        "burst": limit.stats.original,
        "strategy": limit.strategy,
        "limit_text": limit.limit_text,
        "configured_text": limit.configured_text,
    }


def _breaker_fields(state: BreakerState | None, config: BreakerConfig | None) -> dict[str, Any]:
    return {
        "phase": None if state is None else _PHASES[state.phase],
        "reason": "" if state is None else reason_text(state.reason),
        "since": None if state is None else state.since,
        "until": None if state is None else state.degraded_until,
        "forced": None if state is None else state.forced,
        "failures": 0 if state is None else state.failures,
        "threshold": None if config is None else config.threshold,
        "share": 1.0 if state is None else state.share,
        "probes": [] if state is None else [probe.owner for probe in state.probes],
    }


def largest_holders(holders: Mapping[str, int], count: int) -> dict[str, int]:
    """Return the ``count`` workers that hold the most, in that order."""
    ranked = sorted(holders.items(), key=lambda holder: (-holder[1], holder[0]))
    return dict(ranked[:count])


def status_sentence(state: UpstreamState, config: BreakerConfig | None = None) -> str:
    """Return one sentence about the health of an upstream, and one more about policies in shadow mode."""
    shadow = f" In shadow mode, refusing nothing: {' and '.join(state.shadow)}." if state.shadow else ""
    return _health_sentence(state, config) + shadow


def _health_sentence(state: UpstreamState, config: BreakerConfig | None) -> str:
    """Return one sentence: what, why, and until when."""
    breaker = state.breaker
    if breaker is not None and (breaker.forced or breaker.phase != "closed"):
        return _circuit_sentence(breaker, config)
    if state.paused:
        return f"Paused for {_duration(state.paused)}, as requested by the upstream or an operator."
    if state.limit < state.original:
        return (
            f"Slowed down to {state.limit:.1f} of {state.original:.1f} a second: the upstream refused calls."
        )
    overrides = _override_texts(state)
    if overrides:
        return f"An operator set {' and '.join(overrides)}."
    if breaker is None:
        return "No breaker: calls pass."
    if breaker.failures:
        return f"Closed: calls pass; {_failure_count(breaker.failures, config)}."
    return "Closed: calls pass."


def _override_texts(state: UpstreamState) -> list[str]:
    """Return what an operator set each overridden limit to."""
    limits = [(f"the limit {limit.name}", limit.limit_text, limit.configured_text) for limit in state.limits]
    return [
        f"{which} to {text} ({configured} is configured)"
        for which, text, configured in limits or [("the limit", state.limit_text, state.configured_text)]
        if text != configured
    ]


def _circuit_sentence(breaker: BreakerState, config: BreakerConfig | None) -> str:
    """Return the sentence for a circuit that is forced or not closed."""
    reason = reason_text(breaker.reason)
    if breaker.forced:
        is_failing = breaker.forced == "closed" and breaker.failures
        failures = f" despite {_failure_count(breaker.failures, None)}" if is_failing else ""
        return _sentence(f"Held {breaker.forced} by an operator{failures}", reason)
    if breaker.phase == "open":
        until = "" if breaker.degraded_until is None else f" until {_time_of_day(breaker.degraded_until)}"
        return _sentence(f"Open{until}", _cause(breaker.failures, reason, config))
    if breaker.phase == "ramp":
        return f"Closing step by step: {100 * breaker.share:.0f} % of calls pass."
    return _half_open_sentence([probe.owner for probe in breaker.probes], config)


def _half_open_sentence(owners: list[str], config: BreakerConfig | None) -> str:
    if not owners:
        return "Half-open: the next call is a probe."
    total = "" if config is None else f" of {config.probes}"
    word = "probe" if len(owners) == 1 and not total else "probes"
    return f"Half-open: {len(owners)}{total} {word} out, held by {', '.join(sorted(set(owners)))}."


def _cause(failures: int, reason: str, config: BreakerConfig | None) -> str:
    """Return why a circuit opened: failures in a row, or the reason that the breaker recorded."""
    by_threshold = config is not None and config.threshold is not None and failures >= config.threshold
    if not by_threshold:
        return reason
    return f"{failures} failures in a row, the last: {reason}" if reason else f"{failures} failures in a row"


def _failure_count(count: int, config: BreakerConfig | None) -> str:
    opens = "" if config is None or config.threshold is None else f", it opens at {config.threshold}"
    return f"{count} failure{'s' if count > 1 else ''} in a row{opens}"


def _sentence(text: str, reason: str) -> str:
    return f"{text}: {reason.rstrip('.')}." if reason else f"{text}."


def reason_text(reason: str) -> str:
    """Return a reason; write a bare status code as ``HTTP 503``."""
    return f"HTTP {reason}" if len(reason) == 3 and reason.isdigit() else reason


def _time_of_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S UTC")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
