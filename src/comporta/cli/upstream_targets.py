"""Where ``comporta upstream`` reads and changes upstreams: the store itself, or a service over HTTP.

Both targets return the summaries of the dashboard (``fleet/summary.py``). The store's own records are read
after the published summaries, which may be seconds old, so that a change shows at once.
"""

from __future__ import annotations

import getpass
import json
import time
from typing import Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import click

from comporta.breaker.admission import FORCE_NAMES
from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.flows import force_operation
from comporta.breaker.operation import FORCED_SPACE
from comporta.breaker.state import ForcedState, parse_forced_state
from comporta.events import Event
from comporta.fleet.event_journal import ADMIN, JOURNAL, RESET_BREAKER, action_text, encode_event
from comporta.fleet.reader import fleet_status_flow
from comporta.flow import run
from comporta.limits.config import LimitConfig
from comporta.limits.overrides.operation import (
    OverrideOperation,
    OverrideReply,
    PauseLimit,
    ReadOverride,
    ResumeLimit,
    RevokeOverride,
    SetLimit,
)
from comporta.limits.overrides.record import OverrideRecord, limit_text, rate_per_second
from comporta.ramp import FULL_SHARE
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.journal import AppendToJournal
from comporta.stores.records import ReadRecord

Summary = dict[str, Any]

SERVICE_SECONDS = 10.0
_ANSWER_BYTES_MAX = 10 << 20


class UpstreamTarget(Protocol):
    """Reads and changes upstreams. Every change applies to all workers."""

    def summaries(self) -> list[Summary]:
        """Return the current summaries of all upstreams."""

    def with_overrides(self, summary: Summary) -> Summary:
        """Return a summary with the overrides in effect now."""

    def force(self, upstream: Summary, how: str, reason: str) -> None:
        """Hold a circuit ``"open"`` or ``"closed"``."""

    def reset(self, upstream: Summary) -> None:
        """End a forced state and close the circuit."""

    def set_limit(self, upstream: Summary, limit: str | None, limit_name: str | None = None) -> None:
        """Override a limit; ``None`` revokes the override. ``limit_name``: one of several, else the first."""

    def pause(self, upstream: Summary, seconds: float) -> None:
        """Pause all calls; 0 ends a pause."""


class StateTarget:
    """Changes the records of a store. It needs no configuration of the upstreams."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def summaries(self) -> list[Summary]:
        """Return the published summaries with the overrides that the store holds now."""
        self._store.apply(ListWorkers())  # raises an error with the reason, which the flow below does not
        status = run(fleet_status_flow(self._store))
        return [self.with_overrides(summary) for summary in status["upstreams"]]

    def with_overrides(self, summary: Summary) -> Summary:
        """Return a summary with the overrides that the store holds now."""
        forced = parse_forced_state(self._store.apply(ReadRecord(FORCED_SPACE, summary["name"])))
        replies = [self._store.apply(ReadOverride(name, _EXAMPLE_PARAMS)) for name in limiter_names(summary)]
        limits = [
            {**limit, **_limit_fields(limit, reply)}
            for limit, reply in zip(summary["limits"], replies, strict=False)  # none of an upstream with one
        ]
        return {
            **summary,
            **_circuit_fields(summary, forced),
            **_limit_fields(summary, replies[0]),
            "limits": limits,
            "paused": round(max(reply.paused_us for reply in replies) / 1e6, 3),
        }

    def force(self, upstream: Summary, how: str, reason: str) -> None:
        """Write the record that holds a circuit."""
        self._store.apply(force_operation(upstream["name"], how, reason))
        self._log(upstream, "open breaker" if how == "open" else "close breaker", reason)

    def reset(self, upstream: Summary) -> None:
        """Delete that record, and the counts of the circuit."""
        self._store.apply(force_operation(upstream["name"], None))
        CircuitBreaker(upstream["name"], config=BreakerConfig(), state=self._store).sync.reset()
        self._log(upstream, RESET_BREAKER)

    def set_limit(self, upstream: Summary, limit: str | None, limit_name: str | None = None) -> None:
        """Write the override record of a limit."""
        part = find_limit(upstream, limit_name)
        name = limiter_names(upstream)[0 if part is upstream else upstream["limits"].index(part)]
        detail = " ".join(filter(None, (limit_name, limit)))
        if limit is None:
            self._override(upstream, RevokeOverride(name, _EXAMPLE_PARAMS), "revoke limit", detail)
        else:
            config = LimitConfig.parse(limit, part["strategy"])
            operation = SetLimit(name, config.build_strategy().params, str(config))
            self._override(upstream, operation, "change limit", detail)

    def pause(self, upstream: Summary, seconds: float) -> None:
        """Write the pause into the override record; end it in those of all limits."""
        first, *others = limiter_names(upstream)
        if seconds:
            pause = PauseLimit(first, _EXAMPLE_PARAMS, round(seconds * 1e6))
            self._override(upstream, pause, "pause", f"for {seconds:g} s")
            return
        for name in others:
            self._store.apply(ResumeLimit(name, _EXAMPLE_PARAMS))
        self._override(upstream, ResumeLimit(first, _EXAMPLE_PARAMS), "resume")

    def _override(
        self, upstream: Summary, operation: OverrideOperation, action: str, detail: str = ""
    ) -> None:
        self._store.apply(operation)
        self._log(upstream, action, detail)

    def _log(self, upstream: Summary, action: str, detail: str = "") -> None:
        """Append an event to the journal of the fleet."""
        event = Event(time.time(), ADMIN, upstream["name"], action_text(action, detail, _user()), "info")
        self._store.apply(AppendToJournal(JOURNAL, encode_event(event)))


class ServiceTarget:
    """Calls the admin routes of a service, which logs each action in its audit log."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            expected = "the address of a service, such as http://127.0.0.1:8000"
            raise click.BadParameter(f"must be {expected}, got {url!r:.100}", param_hint="--service")
        self._root = f"{url.rstrip('/')}/v1/admin"
        self._address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._token = token

    def summaries(self) -> list[Summary]:
        """Return the summaries of the service's upstreams."""
        return list(self._call("GET", "/upstreams")["upstreams"])

    def with_overrides(self, summary: Summary) -> Summary:
        """Return the current summary of the same upstream."""
        return next(each for each in self.summaries() if each["name"] == summary["name"])

    def force(self, upstream: Summary, how: str, reason: str) -> None:
        """Hold a circuit open or closed."""
        verb = {"open": "open", "closed": "close"}[how]
        self._call("POST", f"/breakers/{_path(upstream)}/{verb}", {"reason": reason})

    def reset(self, upstream: Summary) -> None:
        """Reset a circuit."""
        self._call("POST", f"/breakers/{_path(upstream)}/reset")

    def set_limit(self, upstream: Summary, limit: str | None, limit_name: str | None = None) -> None:
        """Override a limit or revoke that."""
        body = None if limit is None else {"limit": limit}
        query = "" if limit_name is None else f"?limit_name={quote(limit_name, safe='')}"
        self._call("DELETE" if limit is None else "PUT", f"/limits/{_path(upstream)}{query}", body)

    def pause(self, upstream: Summary, seconds: float) -> None:
        """Pause or resume an upstream."""
        if seconds:
            self._call("POST", f"/upstreams/{_path(upstream)}/pause", {"seconds": seconds})
        else:
            self._call("POST", f"/upstreams/{_path(upstream)}/resume")

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = Request(self._root + path, data, headers, method=method)  # noqa: S310 - http or https
        try:
            with urlopen(request, timeout=SERVICE_SECONDS) as response:  # noqa: S310 - http or https
                return json.loads(response.read(_ANSWER_BYTES_MAX))
        except HTTPError as error:
            detail = _problem_detail(error.read(_ANSWER_BYTES_MAX)) or error.reason
            raise click.ClickException(f"{self._address}: {error.code}, {detail}") from None
        except (URLError, OSError) as error:
            raise click.ClickException(f"{self._address}: {getattr(error, 'reason', error)}") from None
        except ValueError:
            raise click.ClickException(
                f"{self._address} does not answer like the service of comporta"
            ) from None


def unpublished_summary(name: str) -> Summary:
    """Return the summary of an upstream that no worker publishes: only its name is known."""
    return {
        "name": name,
        **dict.fromkeys(("phase", "limit", "original", "configured", "burst", "until", "forced")),
        **dict.fromkeys(("reason", "in_words", "limit_text", "configured_text"), ""),
        "paused": 0.0,
        "failures": 0,
        "limits": [],
        "last_failures": [],
        "strategy": "token_bucket",
    }


_EXAMPLE_PARAMS = LimitConfig.parse("1/s").build_strategy().params
"""The parameters of operations that need some but do not write them: a pause, a revocation, a read."""


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
    raise click.BadParameter(f"must be {expected}, got {limit_name!r:.100}", param_hint="--limit-name")


def limiter_names(summary: Summary) -> list[str]:
    """Return the names of an upstream's limits in the store.

    Limits that a program named belong to the upstream's name; those of a list are named after it already.
    """
    name, limits = str(summary["name"]), [str(limit["name"]) for limit in summary["limits"]]
    if not limits:
        return [name]
    return limits if limits[0] == name else [f"{name}.{limit}" for limit in limits]


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


def _path(upstream: Summary) -> str:
    return quote(upstream["name"], safe="")


def _problem_detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a user name
        return "unknown user"
