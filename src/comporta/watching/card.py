"""How an upstream stands, as a card for pages and command lines: figures, and one sentence. Pure.

The sentence says why and until when, the most pressing matter first: what an operator said, a circuit that is
not closed, a pause, a limit that is lowered or changed. Times in it are UTC; a page has ``until``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from comporta.breaker.admission import BreakerState
    from comporta.breaker.config import BreakerConfig
    from comporta.upstream.standing import UpstreamState

HOLDERS_MAX: Final = 40
"""How many workers a card names as holders of permits, those with the most."""

_PHASES = {"closed": "closed", "open": "open", "half_open": "half-open", "ramp": "half-open"}


def card(
    state: UpstreamState,
    minute: Mapping[str, Any],
    *,
    breaker: BreakerConfig | None = None,
    in_flight_max: int | None = None,
) -> dict[str, Any]:
    """Return the card of an upstream: how it stands, what its last minute was, and what it is allowed.

    Times are Unix seconds, durations seconds. Where there is no breaker ``phase`` is ``None``. ``probes`` are
    the owners of the probes that are out, ``holders`` how many permits each worker holds.
    """
    return {
        "name": state.name,
        **_of_breaker(state.breaker, breaker),
        "tokens": state.limiter.tokens_available,
        "capacity": state.limiter.limit,
        "limit": state.limit,
        "original": state.original,
        "configured": state.configured,
        "paused": state.limiter.paused,
        "in_flight": state.calls_in_flight,
        "in_flight_max": in_flight_max,
        "holders": most(state.holders or {}, HOLDERS_MAX),
        "in_words": in_words(state, breaker),
        "minute": dict(minute),
    }


def _of_breaker(found: BreakerState | None, config: BreakerConfig | None) -> dict[str, Any]:
    return {
        "phase": None if found is None else _PHASES[found.phase],
        "why": "" if found is None else _readable(found.why),
        "since": None if found is None else found.since,
        "until": None if found is None else found.degraded_until,
        "forced": None if found is None else found.forced,
        "failures": 0 if found is None else found.failures,
        "threshold": None if config is None else config.threshold,
        "share": 1.0 if found is None else found.share,
        "probes": [] if found is None else [probe.owner for probe in found.probes],
    }


def most(holders: Mapping[str, int], count: int) -> dict[str, int]:
    """Return those that hold the most, the first of them first."""
    ranked = sorted(holders.items(), key=lambda holder: (-holder[1], holder[0]))
    return dict(ranked[:count])


def in_words(state: UpstreamState, config: BreakerConfig | None = None) -> str:
    """Say in one sentence how an upstream stands, why, and until when."""
    breaker = state.breaker
    if breaker is not None and (breaker.forced or breaker.phase != "closed"):
        return _of_circuit(breaker, config)
    if state.limiter.paused:
        return f"Paused for {_duration(state.limiter.paused)}, as the upstream or an operator asked for."
    if state.limit < state.original:
        return (
            f"Slowed down to {state.limit:.1f} of {state.original:.1f} a second: the upstream refused calls."
        )
    if state.configured not in (None, state.original):
        return (
            f"An operator set the limit to {state.original:g} a second; {state.configured:g} is configured."
        )
    if breaker is None:
        return "No breaker: calls pass."
    if breaker.failures:
        return f"Closed: calls pass; {_failures(breaker.failures, config)}."
    return "Closed: calls pass."


def _of_circuit(breaker: BreakerState, config: BreakerConfig | None) -> str:
    """Say how a circuit stands that is forced, or not closed."""
    why = _readable(breaker.why)
    if breaker.forced:
        return _ended(f"Held {breaker.forced} by an operator", why)
    if breaker.phase == "open":
        until = "" if breaker.degraded_until is None else f" until {_clock(breaker.degraded_until)}"
        return _ended(f"Open{until}", _cause(breaker.failures, why, config))
    if breaker.phase == "ramp":
        return f"Closing step by step: {100 * breaker.share:.0f} % of calls pass."
    return _half_open([probe.owner for probe in breaker.probes], config)


def _half_open(owners: list[str], config: BreakerConfig | None) -> str:
    if not owners:
        return "Half-open: the next call is a probe."
    most = "" if config is None else f" of {config.probes}"
    word = "probe" if len(owners) == 1 and not most else "probes"
    return f"Half-open: {len(owners)}{most} {word} out, held by {', '.join(sorted(set(owners)))}."


def _cause(failures: int, why: str, config: BreakerConfig | None) -> str:
    """Say why it opened: by failures in a row, or else by what the machine wrote down."""
    row = config is not None and config.threshold is not None and failures >= config.threshold
    if not row:
        return why
    return f"{failures} failures in a row, the last: {why}" if why else f"{failures} failures in a row"


def _failures(count: int, config: BreakerConfig | None) -> str:
    opens = "" if config is None or config.threshold is None else f", it opens at {config.threshold}"
    return f"{count} failure{'s' if count > 1 else ''} in a row{opens}"


def _ended(text: str, why: str) -> str:
    return f"{text}: {why.rstrip('.')}." if why else f"{text}."


def _readable(why: str) -> str:
    """Call a bare status code what it is."""
    return f"HTTP {why}" if len(why) == 3 and why.isdigit() else why


def _clock(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
