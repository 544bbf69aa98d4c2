"""What a circuit is made of, and what is asked of it and answered: values only."""

from __future__ import annotations

from typing import NamedTuple

from comporta.clock import SECOND_US

FAILURES_US = 300 * SECOND_US
"""How long a count of failures is remembered after the last one."""

SLICES = 10
FAILING_MAX = 16
COUNT_MAX = 10**9
WHY_BYTES_MAX = 200

BARE = -1
"""As a generation: a result that no admission belongs to is of the current one."""

CLOSED, OPEN, HALF_OPEN, RAMP = range(4)
FREE, FORCED_OPEN, FORCED_CLOSED = range(3)
UNCHANGED, OPENED, SHUT, RAMPED, RESET = range(5)

VERBS = ("look", "admit", "fail", "succeed", "give_back", "reset", "open")
LOOK, ADMIT, FAIL, SUCCEED, GIVE_BACK, FORGET, OPEN_UP = VERBS


class Rules(NamedTuple):
    """A configuration in whole numbers, in the order of the script's arguments; 0 turns a rule off."""

    threshold: int
    cooldown_us: int
    failure_ppm: int
    slow_ppm: int
    window_us: int
    minimum_calls: int
    quorum: int
    probes: int
    probe_us: int
    ramp_steps: int
    ramp_us: int

    @property
    def memory_us(self) -> int:
        """How long a circuit is remembered that nobody uses; longer than it is open, or a probe is out."""
        needed = max(self.cooldown_us, self.probe_us) + 60 * SECOND_US
        return max(300 * SECOND_US, needed, self.window_us, self.ramp_steps * self.ramp_us)

    @property
    def slice_us(self) -> int:
        """The length of one part of the window."""
        return max(1, self.window_us // SLICES)

    @property
    def windowed(self) -> bool:
        """Whether calls that succeed have to be counted."""
        return bool(self.failure_ppm or self.slow_ppm)


class Asked(NamedTuple):
    """What is asked or told: the verb, and what belongs to it.

    ``generation`` is that of the admission (of the view, for a look), or ``BARE``; ``probe`` the number of
    the probe, or 0. ``age_us``: how long ago this worker last succeeded (-1: not known); of an opening
    reported late, how long ago it was. ``calls`` and ``slow`` are successes and slow calls not told before.
    """

    verb: str
    generation: int = BARE
    probe: int = 0
    age_us: int = -1
    calls: int = 0
    slow: int = 0
    left_us: int = 0
    owner: str = ""
    why: str = ""


class Probe(NamedTuple):
    """A call that may be made in half-open, by whom, and until when its result counts."""

    number: int
    deadline_us: int
    owner: str


class Slice(NamedTuple):
    """What was counted in one part of the window."""

    number: int
    calls: int
    failures: int
    slow: int


class Failing(NamedTuple):
    """A worker that had trouble, and when last."""

    owner: str
    last_us: int


class Circuit(NamedTuple):
    """The whole state. What ends with ``_ends_us`` is when the group before it is forgotten."""

    failures: int = 0
    failures_ends_us: int = 0
    open_until_us: int = 0
    tripped: bool = False
    opened_us: int = 0
    why: str = ""
    successes: int = 0
    ramp_us: int = 0
    probes: tuple[Probe, ...] = ()
    trip_ends_us: int = 0
    generation: int = 0
    last_us: int = 0
    run_us: int = 0
    slices: tuple[Slice, ...] = ()
    failing: tuple[Failing, ...] = ()
    calls_ends_us: int = 0

    @property
    def ends_us(self) -> int:
        """From when on nothing of it is remembered."""
        return max(self.failures_ends_us, self.open_until_us, self.trip_ends_us, self.calls_ends_us)


EMPTY = Circuit()


class Reply(NamedTuple):
    """How the circuit stands after a step, and what this very step did.

    ``left_us`` is until it is no longer open; half-open, until a probe may be had (0: now); in a ramp, until
    its next step. ``age_us`` is since it opened (-1: nobody knows), ``probe`` the number of a probe granted,
    ``change`` what this step changed. ``alone``: it is this worker's own circuit, not the shared one.
    """

    moment_us: int
    phase: int
    generation: int
    left_us: int
    failures: int
    forced: int
    share: int
    age_us: int
    why: str
    probe: int
    change: int
    probes: tuple[tuple[int, str], ...]
    alone: bool = False


class Forced(NamedTuple):
    """What an operator said: ``FREE`` if nothing."""

    how: int = FREE
    why: str = ""


def forced_by(change: bytes | None) -> Forced:
    """Read an operator's record; what makes no sense says nothing, and line breaks are spaces."""
    plain = bytes(32 if code < 32 or code == 127 else code for code in change or b"").strip(b" ")
    word, _, why = plain.decode("utf-8", "replace").partition(" ")
    how = {"open": FORCED_OPEN, "closed": FORCED_CLOSED}.get(word, FREE)
    return Forced(how, why if how else "")
