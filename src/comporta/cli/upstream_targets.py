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

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.flows import force_operation
from comporta.events import Event
from comporta.fleet.event_journal import ADMIN, JOURNAL, RESET_BREAKER, action_text, encode_event
from comporta.fleet.overrides import Summary, current_summary_flow, pause_flow, set_limit_flow
from comporta.fleet.reader import fleet_status_flow
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.journal import AppendToJournal

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
        return run(current_summary_flow(self._store, summary))

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
        run(set_limit_flow(self._store, upstream, limit, limit_name))
        detail = " ".join(filter(None, (limit_name, limit)))
        self._log(upstream, "revoke limit" if limit is None else "change limit", detail)

    def pause(self, upstream: Summary, seconds: float) -> None:
        """Write the pause into the override record, or end it in the records of all limits."""
        run(pause_flow(self._store, upstream, seconds))
        self._log(upstream, *(("pause", f"for {seconds:g} s") if seconds else ("resume",)))

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
        """Override a limit or revoke its override."""
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
