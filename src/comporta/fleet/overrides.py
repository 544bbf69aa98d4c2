"""Reads and changes overrides of upstreams that only their published summaries describe.

Overrides are records of the store, so an operator needs neither the configuration of the upstream nor an
object of a process that uses it: these flows change the limits and pauses of every worker that uses it.
``breaker.flows.force_operation`` writes the record that holds a circuit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comporta.breaker.admission import FORCE_NAMES
from comporta.breaker.operation import FORCED_SPACE
from comporta.breaker.state import ForcedState, parse_forced_state
from comporta.flow import Flow
from comporta.limits.config import LimitConfig
from comporta.limits.overrides.operation import (
    OverrideReply,
    PauseLimit,
    ReadOverride,
    ResumeLimit,
    RevokeOverride,
    SetLimit,
)
from comporta.limits.overrides.record import OverrideRecord, limit_text, rate_per_second
from comporta.limits.strategies.registry import strategy_type
from comporta.ramp import FULL_SHARE
from comporta.stores.base import Store
from comporta.stores.effects import Apply
from comporta.stores.records import ReadRecord

Summary = dict[str, Any]

_EXAMPLE_PARAMS = LimitConfig.parse("1/s").build_strategy().params
"""The parameters of operations that need some but do not write them: a pause, a revocation, a read."""


def current_summary_flow(store: Store, summary: Summary) -> Flow[Summary]:
    """Return a published summary, which may be seconds old, with the overrides that the store holds now."""
    record: bytes | None = yield Apply(store, ReadRecord(FORCED_SPACE, summary["name"]))
    replies: list[OverrideReply] = []
    for name in limiter_names(summary):
        reply: OverrideReply = yield Apply(store, ReadOverride(name, _EXAMPLE_PARAMS))
        replies.append(reply)
    limits = [
        {**limit, **_limit_fields(limit, reply)}
        for limit, reply in zip(summary["limits"], replies, strict=False)  # none if it has one limit
    ]
    return {
        **summary,
        **_circuit_fields(summary, parse_forced_state(record)),
        **_limit_fields(summary, replies[0]),
        "limits": limits,
        "paused": round(max(reply.paused_us for reply in replies) / 1e6, 3),
    }


def set_limit_flow(
    store: Store, summary: Summary, limit: str | None, limit_name: str | None = None
) -> Flow[None]:
    """Override a limit; ``None`` revokes the override. ``limit_name``: one of several, else the first."""
    part = find_limit(summary, limit_name)
    name = limiter_names(summary)[0 if part is summary else summary["limits"].index(part)]
    if limit is None:
        yield Apply(store, RevokeOverride(name, _EXAMPLE_PARAMS))
    else:
        config = LimitConfig.parse(limit, part["strategy"])
        yield Apply(store, SetLimit(name, config.build_strategy().params, str(config)))


def pause_flow(store: Store, summary: Summary, seconds: float) -> Flow[None]:
    """Pause the first limit, which every call needs; 0 resumes all limits, because any may be paused."""
    names = limiter_names(summary)
    if seconds:
        yield Apply(store, PauseLimit(names[0], _EXAMPLE_PARAMS, round(seconds * 1e6)))
        return
    for name in names:
        yield Apply(store, ResumeLimit(name, _EXAMPLE_PARAMS))


def find_limit(summary: Summary, limit_name: str | None) -> Summary:
    """Return one of several limits by its name; without a name the first, or the upstream if it has one."""
    limits: list[Summary] = summary["limits"]
    if limit_name is None:
        return limits[0] if limits else summary
    for limit in limits:
        if limit["name"] == limit_name:
            return limit
    known = ", ".join(limit["name"] for limit in limits)
    expected = f"one of {known}" if known else f"left out, because {summary['name']} has one limit"
    raise ValueError(f"must be {expected}, got {limit_name!r:.100}")


def limiter_names(summary: Summary) -> list[str]:
    """Return the names of an upstream's limits in the store.

    The upstream's name is put before a limit that a program named; names of limits in a list start with it
    already.
    """
    name, limits = str(summary["name"]), [str(limit["name"]) for limit in summary["limits"]]
    if not limits:
        return [name]
    return limits if limits[0] == name else [f"{name}.{limit}" for limit in limits]


def with_burst(text: str, limit: Mapping[str, Any]) -> str:
    """Return the text of a limit; if it has no burst, add the burst of the current limit.

    If the burst of the current limit equals its amount, as for 10/s, it follows the new amount.
    """
    config = LimitConfig.parse(text, limit["strategy"])
    burst, has_window = limit["burst"], strategy_type(config.strategy_name).needs_window
    if burst is None or has_window or "burst" in text.lower():
        return text
    is_amount = burst == round(limit["original"] * (config.window or 1.0))
    return text if is_amount else f"{text} burst {burst}"


def _circuit_fields(summary: Summary, forced: ForcedState) -> Summary:
    mode = FORCE_NAMES.get(forced.mode)
    if mode == summary["forced"] and (mode is None or forced.reason == summary["reason"]):
        return {}
    fields = {"forced": mode, "phase": mode or "closed", "reason": forced.reason, "until": None}
    return fields if mode else {**fields, "failures": 0}


def _limit_fields(summary: Summary, reply: OverrideReply) -> Summary:
    record = OverrideRecord.parse(reply.record or None)
    if record is not None and (record.set_by_operator or reply.share < FULL_SHARE):
        limit, original = rate_per_second(record.params), rate_per_second(record.base)
        fields = {"limit": limit, "original": original, "burst": record.base.capacity}
        return {**fields, "limit_text": limit_text(record.base)}
    configured = summary["configured"]
    burst = summary["burst"] if summary["original"] == configured else None  # published while overridden
    text = summary["configured_text"]
    return {"limit": configured, "original": configured, "burst": burst, "limit_text": text}
