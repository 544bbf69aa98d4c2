"""Fault scripts: what goes wrong in a simulation, when and for how long, as values and as text.

One fault is written ``hang@5.2+1.5`` (the server hangs at 5.2 s for 1.5 s) or ``pause@3+0.4:w1`` (worker 1 is
stopped); several are separated by ``;``. :data:`KINDS` lists them. ``fault_actions.py`` carries them out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

KINDS: Final = {
    "hang": "the server is stopped; afterwards it carries out what it was sent meanwhile",
    "crash": "the server's process ends; it starts again with its data, or with the value 'empty' or 'old'",
    "slow": "the network takes this many seconds longer in each direction",
    "loss": "this share of all packets is lost and sent again later",
    "partition": "packets do not pass and are sent again later; of these workers, or of all",
    "black_hole": "packets are swallowed; of these workers, or of all",
    "requests_lost": "packets to the server are swallowed; of these workers, or of all",
    "replies_lost": "packets from the server are swallowed; of these workers, or of all",
    "duplicates": "a proxy sends this share of all requests to the server a second time",
    "half_open": "the open connections of these workers, or of all, lead nowhere",
    "full": "the server has no memory left and refuses writes",
    "read_only": "the server is a replica and refuses writes",
    "server_clock": "the server's clock jumps by this many seconds",
    "pause": "these workers are stopped",
    "kill": "these workers are killed; after the given time they start again",
    "exit": "these workers exit normally; after the given time they start again",
    "worker_clock": "Unix time of these workers jumps by this many seconds",
    "upstream_errors": "the upstream answers every request with 503",
    "upstream_flaky": "the upstream answers this share of all requests with 503",
    "upstream_late": "the upstream answers every request with 503, this share of them 1.5 s later",
    "upstream_slow": "the upstream takes this many seconds longer",
    "upstream_refuses": "the upstream answers with 429 and asks for a pause of this many seconds",
}
"""The kinds of faults, and what each does."""

NO_VALUE = ""

_PATTERN = re.compile(
    r"(?P<kind>[a-z_]+)@(?P<at>[0-9.]+)(?:\+(?P<seconds>[0-9.]+))?(?::(?P<arguments>[\w.,+-]+))?"
)
_WORKER = re.compile(r"w(\d+)")


class Fault(NamedTuple):
    """A fault that begins ``at`` a time and lasts for ``seconds``; without ``workers`` it affects all."""

    kind: str
    at: float
    seconds: float = 0.0
    workers: tuple[int, ...] = ()
    value: str = NO_VALUE

    @property
    def end(self) -> float:
        """When the fault is over."""
        return self.at + self.seconds

    @property
    def number(self) -> float:
        """The value as a number."""
        return float(self.value or 0)

    def __str__(self) -> str:
        arguments = [f"w{index}" for index in self.workers]
        if self.value:
            arguments.append(self.value)
        lasting = f"+{self.seconds:g}" if self.seconds else ""
        return f"{self.kind}@{self.at:g}{lasting}" + (f":{','.join(arguments)}" if arguments else "")


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parse a fault script; ``ValueError`` names the part that is wrong."""
    return tuple(_parse_fault(part.strip()) for part in text.split(";") if part.strip())


def format_faults(faults: Iterable[Fault]) -> str:
    """Return a fault script as :func:`parse_faults` reads it."""
    return "; ".join(str(fault) for fault in faults)


def _parse_fault(text: str) -> Fault:
    parts = _PATTERN.fullmatch(text)
    if parts is None:
        raise ValueError(f"fault must look like 'hang@5+2' or 'pause@3+0.5:w1', got {text!r:.100}")
    if parts["kind"] not in KINDS:
        raise ValueError(f"fault must be one of {', '.join(KINDS)}, got {parts['kind']!r}")
    workers, value = [], NO_VALUE
    for argument in (parts["arguments"] or "").split(","):
        worker = _WORKER.fullmatch(argument)
        if worker:
            workers.append(int(worker[1]))
        elif argument:
            value = argument
    return Fault(parts["kind"], float(parts["at"]), float(parts["seconds"] or 0), tuple(workers), value)
