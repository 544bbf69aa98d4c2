"""Tables and texts of ``comporta upstream``: the list, one upstream, its circuit and its limits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from comporta.cli.console import clock_time, new_table, printable_text, rough_duration, status_sentence
from comporta.fleet.summary import overridden_limits
from comporta.limits.overrides.record import rate_text

if TYPE_CHECKING:
    from comporta.fleet.overrides import Summary

_STYLES = {"open": "bold red", "half-open": "yellow", "closed": "green"}


def list_table(found: list[Summary]) -> Table:
    """Return the table of all upstreams."""
    table = new_table("upstream", "circuit", "limit", "notes", right=("limit",))
    for each in found:
        table.add_row(
            printable_text(each["name"]),
            Text(each["phase"] or "no breaker", style=_STYLES.get(each["phase"], "")),
            "unknown" if each["limit"] is None else f"{rate_text(each['limit'])}/s",
            printable_text("; ".join(_notes(each))),
        )
    return table


def show_table(each: Summary) -> Table:
    """Return the table of one upstream: a row for each field."""
    in_flight, in_flight_max = each["in_flight"], each["in_flight_max"]
    fields = {
        "upstream": each["name"],
        "circuit": circuit_text(each),
        "failures": _failures_text(each),
        "limit": limit_text(each),
        "configured": "-" if each["configured"] is None else f"{rate_text(each['configured'])}/s",
        "strategy": each["strategy"],
        "paused": f"for {each['paused']:.0f} s" if each["paused"] else "no",
        "in flight": "-" if in_flight is None else f"{in_flight} of at most {in_flight_max}",
        "shadow mode": " and ".join(each["shadow"]) or "no",
    }
    rows = [*fields.items(), *_limit_rows(each), *_failure_rows(each)]
    table = new_table("field", "value")
    for field, value in rows:
        table.add_row(printable_text(field), printable_text(str(value)))
    return table


def _limit_rows(each: Summary) -> list[tuple[str, str]]:
    """Return a row for each limit of an upstream that has several."""
    return [
        (f"limit {limit['name']}", f"{limit_text(limit)}{_configured_text(limit)}")
        for limit in each["limits"]
    ]


def _configured_text(limit: Summary) -> str:
    return f" ({limit['configured_text']} is configured)" if overridden_limits(limit) else ""


def _failure_rows(each: Summary) -> list[tuple[str, str]]:
    """Return a row for each of the last failures, the newest first, with the local time and the worker."""
    titles = ["last failures", *[""] * len(each["last_failures"])]
    return [
        (title, f"{clock_time(failure['at'])} {failure['text']} ({failure['worker']})")
        for title, failure in zip(titles, each["last_failures"], strict=False)
    ]


def _notes(each: Summary) -> list[str]:
    """Return what is unusual about an upstream, the most pressing first."""
    notes = []
    if each["forced"]:
        notes.append(f"held {each['forced']} by an operator{_because(each)}")
    elif each["phase"] in ("open", "half-open"):
        notes.append(status_sentence(each, time.time()).rstrip("."))
    if each["paused"]:
        notes.append(f"paused for {rough_duration(each['paused'])}")
    if each["limit"] is not None and each["limit"] < each["original"]:
        notes.append(f"slowed down from {rate_text(each['original'])}/s")
    for limit in overridden_limits(each):
        which = f"limit {limit['name']}" if each["limits"] else "limit"
        notes.append(f"{which} set by an operator ({limit['configured_text']} is configured)")
    return notes


def circuit_text(each: Summary) -> str:
    """Return the state of a circuit, and who holds it."""
    if each["forced"]:
        return f"held {each['forced']} by an operator{_because(each)}"
    return each["phase"] or "no breaker"


def _failures_text(each: Summary) -> str:
    is_counted = each["threshold"] is not None and not each["forced"] and each["phase"] == "closed"
    return f"{each['failures']} in a row" + (f", opens at {each['threshold']}" if is_counted else "")


def _because(each: Summary) -> str:
    return f" ({each['reason']})" if each["reason"] else ""


def limit_text(each: Summary) -> str:
    """Return a limit without degradation, and how far it is lowered."""
    if each["limit"] is None:
        return "unknown"
    burst = "" if each["burst"] is None else f" burst {each['burst']}"
    lowered = f", slowed down to {rate_text(each['limit'])}/s" if each["limit"] < each["original"] else ""
    return f"{rate_text(each['original'])}/s{burst}{lowered}"
