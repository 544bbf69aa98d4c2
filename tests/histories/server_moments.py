"""The moments at which a server changed the limit of a recorded history, as it reports them itself.

MONITOR reports every script with its connection, and every command of the script after it. A script that
changes a sliding window writes the time of the change, in µs: the time by which it decided.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import redis
from redis.client import Monitor
from tests.histories.linearizability import Call

_KEY = re.compile(r"(?<= )rate_limiter:tested:(\S+)")
_CHANGE = re.compile(r"HSET \S+ used \d+ last (\d+)\.(\d{6}) ")
_END = "the histories end here"


class Script(NamedTuple):
    """A script that the server ran: when it reported it, and the time that the script wrote, if any."""

    reported_us: int
    changed_us: int | None = None


Scripts = dict[str, dict[str, list[Script]]]
"""For each key of the limit and each connection: the scripts that the server ran, in order."""


class ScriptMonitor:
    """Collects what a server reports while it is monitored."""

    def __init__(self, client: redis.Redis, monitor: Monitor) -> None:
        self._client = client
        self._monitor = monitor

    def scripts(self) -> Scripts:
        """Return all scripts until now."""
        self._client.echo(_END)
        scripts: Scripts = defaultdict(lambda: defaultdict(list))
        running: list[Script] = []
        while (report := self._next_report())["command"] != f"ECHO {_END}":
            command = report["command"]
            if report["client_type"] != "lua":
                key = _KEY.search(command)
                running = scripts[key[1]][report["client_port"]] if key else []
                running.append(Script(round(report["time"] * 1e6)))
            elif change := _CHANGE.match(command):
                running[-1] = running[-1]._replace(changed_us=int(change[1] + change[2]))
        return scripts

    def _next_report(self) -> dict[str, Any]:
        report: dict[str, Any] = self._monitor.next_command()  # type: ignore[no-untyped-call] # by redis-py
        return report


@contextmanager
def monitored(url: str) -> Iterator[ScriptMonitor]:
    """Watch the scripts that a server runs within the block."""
    parts = urlsplit(url)
    with redis.Redis(parts.hostname or "", parts.port or 0) as client, client.monitor() as monitor:
        yield ScriptMonitor(client, monitor)


def with_server_moments(
    histories: Sequence[list[Call]], keys: Sequence[str], scripts: Scripts
) -> list[list[Call]]:
    """Return the histories, in which each call that changed its key has the moment that the server wrote."""
    processes = {call.process for history in histories for call in history}
    owned = {process: _connections_of(process, histories, keys, scripts) for process in processes}
    return [
        [_at_server_moment(call, owned[call.process], scripts[key]) for call in history]
        for history, key in zip(histories, keys, strict=True)
    ]


def _connections_of(
    process: int, histories: Sequence[list[Call]], keys: Sequence[str], scripts: Scripts
) -> set[str]:
    """Return the connections of a process: those whose scripts all ran within its calls."""
    all_connections: set[str] = set()
    of_others: set[str] = set()
    for history, key in zip(histories, keys, strict=True):
        calls = [call for call in history if call.process == process]
        for connection, ran in scripts[key].items():
            all_connections.add(connection)
            if not all(any(_contains(call, script.reported_us) for call in calls) for script in ran):
                of_others.add(connection)
    return all_connections - of_others


def _at_server_moment(call: Call, connections: set[str], scripts: dict[str, list[Script]]) -> Call:
    """Return the call at the moment of its change; a call that changed nothing remains as it is."""
    ran = [
        script
        for connection in connections
        for script in scripts.get(connection, ())
        if _contains(call, script.reported_us)
    ]
    assert ran, f"the server reported no script of {call}"
    changes = [script.changed_us for script in ran if script.changed_us is not None]
    if not changes:
        return call
    [changed_us] = changes
    assert _contains(call, changed_us), f"the server changed the key at {changed_us}, not during {call}"
    return call._replace(began_us=changed_us, ended_us=changed_us)


def _contains(call: Call, at_us: int) -> bool:
    return call.began_us <= at_us <= call.ended_us
