"""The values of a circuit: its state, the requests to it and its replies.

Values only: ``state_machine`` changes them, ``codec`` and ``breaker.lua`` store them.
"""

from __future__ import annotations

from typing import NamedTuple

from comporta.clock import SECOND_US

FAILURES_TTL_US = 300 * SECOND_US
"""How long the count of failures outlives the last failure."""

TTL_MARGIN_US = 60 * SECOND_US
"""How much longer than its cooldown, or a probe, an unused circuit is kept."""

SLICES = 10
"""How many slices the window of ``failure_ratio`` and ``slow_ratio`` has."""

FAILING_WORKERS_MAX = 16
COUNT_MAX = 10**9
WHY_BYTES_MAX = 200

NO_ADMISSION = -1
"""As a generation: the result comes without an admission and counts for the current generation."""

CLOSED, OPEN, HALF_OPEN, RAMP = range(4)
NOT_FORCED, FORCED_OPEN, FORCED_CLOSED = range(3)
CHANGE_NONE, CHANGE_OPENED, CHANGE_CLOSED, CHANGE_RAMP, CHANGE_RESET = range(5)

COMMANDS = ("read", "admit", "fail", "succeed", "release", "reset", "report_open", "report_failures")
READ, ADMIT, FAIL, SUCCEED, RELEASE, RESET, REPORT_OPEN, REPORT_FAILURES = COMMANDS


class CircuitRules(NamedTuple):
    """A ``BreakerConfig`` in integers, in the order of the script's arguments; 0 turns a rule off.

    ``cooldown_permille`` is the factor of a cooldown that follows another, in thousandths.
    """

    threshold: int
    cooldown_us: int
    cooldown_permille: int
    cooldown_max_us: int
    failure_ppm: int
    slow_ppm: int
    window_us: int
    minimum_calls: int
    quorum: int
    probes: int
    probes_at_once: int
    probe_us: int
    ramp_steps: int
    ramp_step_us: int

    @property
    def ttl_us(self) -> int:
        """How long an unused circuit is kept: longer than its first cooldown and the limit of a probe."""
        needed = max(self.cooldown_us, self.probe_us) + TTL_MARGIN_US
        return max(300 * SECOND_US, needed, self.window_us, self.ramp_steps * self.ramp_step_us)

    @property
    def slice_us(self) -> int:
        """The length of one slice of the window."""
        return max(1, self.window_us // SLICES)

    @property
    def uses_window(self) -> bool:
        """Whether a rule depends on the number of calls in the window, so that successes must be counted."""
        return bool(self.failure_ppm or self.slow_ppm)


class CircuitRequest(NamedTuple):
    """A command to a circuit, and its arguments.

    ``generation`` is that of the admission (for ``READ``, of the last reply), or ``NO_ADMISSION``. ``probe``
    is the number of the probe, or 0. ``succeeded_us`` is when this worker last succeeded (-1: unknown).
    ``calls`` and ``slow`` are the successes and the slow calls that this worker has not reported yet.

    For ``REPORT_OPEN``: ``remaining_us`` is how long the circuit stays open, ``age_us`` how long ago it
    opened and ``cooldown_us`` the whole cooldown. For ``REPORT_FAILURES``: ``total`` is the number of
    failures of this worker in this generation, and ``streak`` how many of the latest are in a row.
    """

    command: str
    generation: int = NO_ADMISSION
    probe: int = 0
    succeeded_us: int = -1
    calls: int = 0
    slow: int = 0
    remaining_us: int = 0
    age_us: int = 0
    cooldown_us: int = 0
    total: int = 0
    streak: int = 0
    owner: str = ""
    reason: str = ""


class Probe(NamedTuple):
    """A test call in the half-open phase: its number, the time until which its result counts, its worker."""

    number: int
    deadline_us: int
    owner: str


class WindowSlice(NamedTuple):
    """The counts of one slice of the window."""

    number: int
    calls: int
    failures: int
    slow: int


class FailingWorker(NamedTuple):
    """A worker whose calls failed or were slow, when the last of them ended, and how many failed."""

    owner: str
    last_failure_us: int
    failures: int


class Circuit(NamedTuple):
    """The whole state of a circuit. Each ``_ends_us`` is the time at which the fields before it expire.

    The group ``opened_us`` to ``trip_ends_us`` describes a circuit that tripped and has not closed since.
    ``cooldown_us`` is the length of its last cooldown. ``streak_start_us`` is the time of the first failure
    of the current run of failures.
    """

    failures: int = 0
    failures_ends_us: int = 0
    open_until_us: int = 0
    tripped: bool = False
    opened_us: int = 0
    reason: str = ""
    successes: int = 0
    ramp_start_us: int = 0
    probes: tuple[Probe, ...] = ()
    cooldown_us: int = 0
    trip_ends_us: int = 0
    generation: int = 0
    last_failure_us: int = 0
    streak_start_us: int = 0
    slices: tuple[WindowSlice, ...] = ()
    failing_workers: tuple[FailingWorker, ...] = ()
    calls_ends_us: int = 0

    @property
    def ends_us(self) -> int:
        """The time at which the whole state expires."""
        return max(self.failures_ends_us, self.open_until_us, self.trip_ends_us, self.calls_ends_us)


EMPTY_CIRCUIT = Circuit()


class CircuitReply(NamedTuple):
    """The circuit after a request, and what this request changed.

    ``remaining_us`` is the time until the circuit is no longer open; in the half-open phase, until a probe is
    free (0: now); in a ramp, until its next step. ``age_us`` is the time since it opened (-1: unknown),
    ``cooldown_us`` the length of its last cooldown. ``own_failures`` is the number of failures of the
    requesting worker in this generation. ``calls``, ``failed`` and ``slow`` are the counts of the window,
    which began ``window_age_us`` ago (-1: it is empty). ``probe`` is the number of the probe that this
    request got, ``change`` what it changed. ``is_fallback`` is true if the reply describes this worker's own
    circuit because the shared one is unreachable.
    """

    now_us: int
    phase: int
    generation: int
    remaining_us: int
    failures: int
    forced: int
    share: int
    age_us: int
    cooldown_us: int
    own_failures: int
    calls: int
    failed: int
    slow: int
    window_age_us: int
    reason: str
    probe: int
    change: int
    probes: tuple[tuple[int, str], ...]
    is_fallback: bool = False


class ForcedState(NamedTuple):
    """The state in which an operator holds a circuit; ``NOT_FORCED`` if none does."""

    mode: int = NOT_FORCED
    reason: str = ""


def parse_forced_state(record: bytes | None) -> ForcedState:
    """Parse an operator's record, such as ``b"open maintenance"``.

    A record that begins with any other word has no effect. Control characters become spaces.
    """
    plain = bytes(32 if code < 32 or code == 127 else code for code in record or b"").strip(b" ")
    word, _, reason = plain.decode("utf-8", "replace").partition(" ")
    mode = {"open": FORCED_OPEN, "closed": FORCED_CLOSED}.get(word, NOT_FORCED)
    return ForcedState(mode, reason if mode else "")
