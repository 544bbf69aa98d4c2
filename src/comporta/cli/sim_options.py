"""The options of ``comporta sim`` that have a form of their own: ``--upstream`` and ``--fault``.

Every mistake becomes a sentence that names the option, what it may be and what was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from comporta.simulation.faults import Fault
from comporta.simulation.playback import UpstreamFault
from comporta.simulation.upstream_model import ModelOptions

UPSTREAM_FORM: Final = "NAME:capacity=10/s,latency=0.3s"
FAULT_FORM: Final = "redis-hang@30s+5s"

SECONDS_MAX: Final = 86_400.0
RATE_MAX: Final = 1_000_000.0

# on the command line: (its kind in a fault script, the value that it takes, what it does)
REDIS_FAULTS: Final = {
    "redis-hang": ("hang", "", "the server answers nothing"),
    "redis-crash": ("crash", "", "the server is down, and comes back with its data"),
    "redis-wipe": ("crash", "empty", "the server is down, and comes back empty"),
    "redis-full": ("full", "", "the server has no memory left and refuses writes"),
    "redis-read-only": ("read_only", "", "the server is a replica and refuses writes"),
    "redis-slow": ("slow", "seconds", "every message to and from the server takes longer: =40ms"),
    "redis-lossy": ("loss", "share", "packets are lost and sent again: =5%"),
    "redis-cut": ("black_hole", "workers", "workers cannot reach the server: =20, =50%"),
    "worker-pause": ("pause", "workers", "workers are stopped, as with SIGSTOP: =20, =50%"),
    "worker-kill": ("kill", "workers", "workers are killed, and restart after that time: =20, =50%"),
}
UPSTREAM_FAULTS: Final = {
    "down": "the upstream refuses connections",
    "slow": "the upstream takes longer: =2s",
    "refuses": "the upstream answers 429 and asks for a pause: =10s",
}

_FAULT = re.compile(
    r"(?P<what>[A-Za-z0-9_.-]+)@(?P<at>[0-9.]+[a-z]*)(?:\+(?P<lasts>[0-9.]+[a-z]*))?(?:=(?P<value>[0-9.]+[a-z%]*))?"
)
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|min|h|)")
_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(?:/(s|second|m|minute|h|hour))?")
_PERIODS = {None: 1, "s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600}
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DEFAULT_VALUES = {"seconds": "40ms", "share": "5%", "workers": "1", "slow": "2s", "refuses": "10s"}


class ParsedUpstream(NamedTuple):
    """An upstream as ``--upstream`` describes it; ``demand`` is ``None`` if ``--demand`` applies."""

    name: str
    model: ModelOptions
    demand: float | None


def parse_upstream(text: str, names: Iterable[str]) -> ParsedUpstream:
    """Parse ``pncp:capacity=10/s,latency=0.3s,errors=2%,queue=5s,demand=2/s``."""
    name, _, fields = text.partition(":")
    known = list(names)
    if name not in known:
        raise ValueError(f"--upstream must name one of {', '.join(known)}, got {name!r:.100}")
    values: dict[str, float] = {}
    for field in filter(None, fields.split(",")):
        key, equals, value = field.partition("=")
        if not equals or key not in _FIELDS:
            choices = ", ".join(f"{each}=" for each in _FIELDS)
            raise ValueError(f"--upstream must look like {UPSTREAM_FORM}, with {choices}, got {field!r:.100}")
        values[key] = _FIELDS[key](f"--upstream {name}: {key}", value)
    demand = values.pop("demand", None)
    return ParsedUpstream(name, ModelOptions(**values), demand)


def parse_fault(text: str, names: Sequence[str], workers: int, seconds: float) -> Fault | UpstreamFault:
    """Parse ``redis-hang@30s+5s``, ``worker-kill@1m+10s=50%`` or ``pncp-down@1m+30s``."""
    parts = _FAULT.fullmatch(text)
    if parts is None:
        raise ValueError(f"--fault must look like {FAULT_FORM} or pncp-slow@1m+30s=2s, got {text!r:.100}")
    at = parse_duration(f"--fault {text}: the start", parts["at"])
    lasts = seconds - at if parts["lasts"] is None else parse_duration("--fault: the length", parts["lasts"])
    if at >= seconds:
        raise ValueError(f"--fault {text} must begin within the {seconds:g} s that are simulated")
    if parts["what"] in REDIS_FAULTS:
        return _fleet_fault(parts, at, lasts, workers)
    name, _, kind = parts["what"].rpartition("-")
    if name not in names or kind not in UPSTREAM_FAULTS:
        kinds = [*REDIS_FAULTS, *(f"{each}-{kind}" for each in names for kind in UPSTREAM_FAULTS)]
        raise ValueError(f"--fault must be one of {', '.join(kinds)}, got {parts['what']!r:.100}")
    value = parse_duration(f"--fault {text}: the value", parts["value"] or _DEFAULT_VALUES.get(kind, "0"))
    return UpstreamFault(name, kind, at, lasts, value)


def fault_name(fault: Fault) -> str:
    """Return the name of a fault of the fleet on the command line."""
    wiped = fault.kind == "crash" and fault.value == "empty"
    names = {kind: name for name, (kind, value, _) in REDIS_FAULTS.items() if value != "empty"}
    return "redis-wipe" if wiped else names[fault.kind]


def _fleet_fault(parts: re.Match[str], at: float, lasts: float, workers: int) -> Fault:
    kind, value, _ = REDIS_FAULTS[parts["what"]]
    given = parts["value"] or _DEFAULT_VALUES.get(value, "")
    what = f"--fault {parts[0]}: the value"
    if value == "seconds":
        return Fault(kind, at, lasts, (), f"{parse_duration(what, given):g}")
    if value == "share":
        return Fault(kind, at, lasts, (), f"{parse_share(what, given):g}")
    if value == "workers":
        return Fault(kind, at, lasts, tuple(range(_worker_number(what, given, workers))))
    return Fault(kind, at, lasts, (), value)


def _worker_number(what: str, text: str, workers: int) -> int:
    if text.endswith("%"):
        return max(1, round(parse_share(what, text) * workers))
    if not text.isdigit() or not 1 <= int(text) <= workers:
        raise ValueError(f"{what} must be a number of workers, 1 to {workers}, or such as 50%, got {text!r}")
    return int(text)


def parse_duration(what: str, text: str) -> float:
    """Return the seconds of ``30s``, ``1.5m``, ``40ms``, ``1h`` or a plain number."""
    parts = _DURATION.fullmatch(text)
    seconds = float(parts[1]) * _UNITS[parts[2]] if parts else -1.0
    if not 0 <= seconds <= SECONDS_MAX:
        raise ValueError(f"{what} must be a duration such as 30s or 5m, at most 24h, got {text!r:.50}")
    return seconds


def parse_share(what: str, text: str) -> float:
    """Return the number of ``2%`` or ``0.02``."""
    digits, is_percent = text.removesuffix("%"), text.endswith("%")
    try:
        share = float(digits) / (100 if is_percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{what} must be a share such as 2% or 0.02, 0 to 1, got {text!r:.50}")
    return share


def parse_rate(what: str, text: str) -> float:
    """Return the calls per second of ``10/s``, ``0.5/s`` or ``600/minute``; 0 stands for none."""
    parts = _RATE.fullmatch(text)
    rate = float(parts[1]) / _PERIODS[parts[2]] if parts else RATE_MAX + 1
    if rate > RATE_MAX:
        raise ValueError(f"{what} must be a rate such as 10/s, at most {RATE_MAX:,.0f}/s, got {text!r:.50}")
    return rate


_FIELDS: dict[str, Callable[[str, str], float]] = {
    "capacity": parse_rate,
    "latency": parse_duration,
    "errors": parse_share,
    "queue": parse_duration,
    "demand": parse_rate,
}
