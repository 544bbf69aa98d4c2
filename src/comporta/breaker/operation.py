"""One request to a circuit as an operation that every store can apply, and its form during outages.

Knows the keys and the script; ``state_machine`` and ``breaker.lua`` know what a request does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.breaker.codec import CIRCUIT
from comporta.breaker.normalization import normalize
from comporta.breaker.result_counts import own_failures
from comporta.breaker.state import (
    CHANGE_NONE,
    EMPTY_CIRCUIT,
    FAIL,
    HALF_OPEN,
    RAMP,
    READ,
    RELEASE,
    REPORT_FAILURES,
    REPORT_OPEN,
    SUCCEED,
    Circuit,
    CircuitReply,
    CircuitRequest,
    CircuitRules,
    ForcedState,
    parse_forced_state,
)
from comporta.breaker.state_machine import step
from comporta.breaker.store_clock import SameClock, StoreClock
from comporta.errors import StateTypeError
from comporta.stores.base import GONE, Codec, Operation, Script, State, StateKey, StateType, key_text
from comporta.stores.lua import lua, script_error
from comporta.stores.outage_info import Outage
from comporta.stores.records import RECORD

SPACE = "circuit_breaker"
FORCED_SPACE = "circuit_breaker_change"
_KEYS = ("failures", "degraded_until", "half_open", "calls")
_REPLY_SIZE = 18


SCRIPT = Script("breaker", partial(lua, "breaker/breaker"), batchable=True, notes_changes=True)


_SAME_CLOCK = SameClock()


def circuit_name(name: str) -> str:
    """Return the name of a circuit in the change log."""
    return f"{SPACE}:{name}"


class CircuitSnapshot(NamedTuple):
    """What a worker knows about a circuit, with times of its own clock, for use during an outage.

    ``is_local`` is true if the counts are from this worker's own circuit, not from the shared one.
    ``succeeded_us`` is when this worker last succeeded (-1: unknown).
    """

    circuit: Circuit
    forced: ForcedState
    is_local: bool = False
    succeeded_us: int = -1


class BreakerOperation(Operation[CircuitReply]):
    """One request to one circuit.

    ``snapshot`` returns what this worker knows about the circuit; it is called when the store is unreachable.
    ``worker_count`` bounds the quorum, because no more than all workers can fail. ``store_clock`` converts
    the times of the request, which are on this machine's clock.
    """

    __slots__ = ("_name", "_request", "_rules", "_snapshot", "_store_clock", "_worker_count")

    script = SCRIPT
    reply_size = _REPLY_SIZE

    def __init__(
        self,
        name: str,
        rules: CircuitRules,
        request: CircuitRequest,
        snapshot: Callable[[], CircuitSnapshot],
        worker_count: int = 16,
        *,
        store_clock: StoreClock = _SAME_CLOCK,
    ) -> None:
        self._name = name
        self._store_clock = store_clock
        self._rules = rules
        self._request = request
        self._snapshot = snapshot
        self._worker_count = worker_count

    @property
    def state_keys(self) -> list[StateKey]:
        """The circuit, and the operator's record."""
        return [StateKey(f"{SPACE}:{self._name}", "", CIRCUIT), StateKey(FORCED_SPACE, self._name, RECORD)]

    @property
    def is_read(self) -> bool:
        """Whether the request is a read that reports no counts."""
        request = self._request
        return request.command == READ and not (request.calls or request.slow)

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], CircuitReply]:
        """Carry out the request. A circuit without information is deleted."""
        stored, record = states
        forced = parse_forced_state(None if record is None else record[1])
        old = EMPTY_CIRCUIT if stored is None else Circuit._make(stored)
        new, reply = step(old, self._effective_rules(), self._stored_request(), now_us, forced)
        return [_state_change(stored, new, now_us), None], reply

    def script_keys(self) -> list[str]:
        """Return the four keys of the circuit, which operators can read, and the operator's key."""
        space = f"{SPACE}:{self._name}"
        return [*(key_text(space, key) for key in _KEYS), key_text(FORCED_SPACE, self._name)]

    def script_args(self) -> list[int | str | bytes]:
        """Return the command, the rules, and the arguments of the request."""
        command, *arguments, owner, reason = self._stored_request()
        return [command, *self._effective_rules(), *arguments, owner, reason.encode("utf-8", "replace")]

    def changed_name(self, reply: CircuitReply) -> str | None:
        """Return the circuit's name if other workers must read it again.

        They must after a transition, when a probe is free again, and when a streak of failures reaches half
        of the threshold: from then on a success of any worker ends it.
        """
        request, threshold = self._request, self._rules.threshold
        frees_probe = request.probe > 0 and request.command in (SUCCEED, RELEASE) and reply.phase == HALF_OPEN
        notice_at = reply.failures if reply.phase == RAMP else (threshold + 1) // 2
        is_streak = reply.failures > 0 and (
            request.command == REPORT_FAILURES or (request.command == FAIL and reply.failures == notice_at)
        )
        changed = reply.change != CHANGE_NONE or frees_probe or is_streak
        return circuit_name(self._name) if changed else None

    def undo(self, reply: CircuitReply) -> BreakerOperation | None:
        """Return the operation that releases a probe granted to a cancelled caller."""
        if not reply.probe:
            return None
        return BreakerOperation(
            self._name, self._rules, CircuitRequest(RELEASE, probe=reply.probe), self._snapshot
        )

    def fallback(self, outage: Outage) -> FallbackBreakerOperation:
        """Return the same request to this worker's own circuit: its share of the threshold, and one probe."""
        return FallbackBreakerOperation(
            self._name,
            self._rules,
            self._request,
            self._snapshot,
            outage.worker_count,
            store_clock=self._store_clock,
        )

    def parse(self, raw: Sequence[Any]) -> CircuitReply:
        """Parse the script's reply; bytes as the first value are the error of a key."""
        now_us, *_ = raw
        if isinstance(now_us, bytes):
            raise _key_error(self._name, now_us)
        *before, reason, probe, change, probes = raw
        for number in (*before, probe, change):
            if not isinstance(number, int):
                raise TypeError(f"expected an integer, got {number!r:.50}")
        if len(raw) != _REPLY_SIZE:
            raise ValueError(f"expected {_REPLY_SIZE} values, got {len(raw)}")
        return CircuitReply._make(
            [*before, _decode(reason), probe, change, _parse_probes(_decode(probes)), False]
        )

    def _stored_request(self) -> CircuitRequest:
        """Return the request with times of the store's clock."""
        request = self._request
        return request._replace(succeeded_us=self._store_clock.to_store_us(request.succeeded_us))

    def _effective_rules(self) -> CircuitRules:
        rules, worker_count = self._rules, self._worker_count
        return rules if rules.quorum <= worker_count else rules._replace(quorum=max(1, worker_count))


class FallbackBreakerOperation(BreakerOperation):
    """The same request to this worker's own circuit, which starts as a copy of the shared one."""

    __slots__ = ("_forced", "_state_type")

    def __init__(
        self,
        name: str,
        rules: CircuitRules,
        request: CircuitRequest,
        snapshot: Callable[[], CircuitSnapshot],
        worker_count: int,
        *,
        store_clock: StoreClock,
    ) -> None:
        share = rules._replace(
            threshold=-(-rules.threshold // worker_count), quorum=1, probes=1, probes_at_once=1
        )
        super().__init__(name, share, request, snapshot, 1)
        known = snapshot()
        self._forced = known.forced
        initial = known.circuit if known.is_local else _share_streak(known.circuit, rules, worker_count)
        self._state_type = FallbackCircuitType(
            name,
            rules,
            initial,
            request.owner,
            snapshot,
            worker_count=worker_count,
            store_clock=store_clock,
        )

    @property
    def state_keys(self) -> list[StateKey]:
        """This worker's circuit; the operator's record is part of the snapshot."""
        return [StateKey(f"{SPACE}:{self._name}", "", self._state_type)]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], CircuitReply]:
        """Carry out the request on the local circuit."""
        [stored] = states
        old = self._state_type.initial if stored is None else Circuit._make(stored)
        new, reply = step(old, self._rules, self._request, now_us, self._forced)
        return [_state_change(stored, new, now_us)], reply._replace(is_fallback=True)


def _share_streak(circuit: Circuit, rules: CircuitRules, worker_count: int) -> Circuit:
    """Return the circuit with a failure count from which this worker's share of the remaining ones opens it.

    Without this an outage would restart the streak, and each worker would allow its whole share of failures.
    """
    if not (rules.threshold and circuit.failures):
        return circuit
    left = -(-max(1, rules.threshold - circuit.failures) // worker_count)
    return circuit._replace(failures=-(-rules.threshold // worker_count) - left)


class FallbackCircuitType(StateType):
    """The state type of a worker's own circuit, which is reported when the store recovers.

    An open circuit is reported even if it was open before the outage: a server that restarted empty, or a
    replica that took over, may have lost it. Otherwise the failures are reported. Both reports can be sent
    again without being counted twice.
    """

    __slots__ = (
        *("_name", "_owner", "_reported_failures", "_reported_generation", "_rules", "_snapshot"),
        *("_store_clock", "_worker_count", "initial"),
    )

    codec: Codec = CIRCUIT.codec

    def __init__(
        self,
        name: str,
        rules: CircuitRules,
        initial: Circuit,
        owner: str,
        snapshot: Callable[[], CircuitSnapshot],
        *,
        worker_count: int,
        store_clock: StoreClock,
    ) -> None:
        self._name = name
        self._rules = rules
        self._owner = owner
        self._snapshot = snapshot
        self._worker_count = worker_count
        self._store_clock = store_clock
        self._reported_generation = 0
        self._reported_failures = own_failures(initial, owner)
        self.initial = initial

    @staticmethod
    def expires_us(state: State) -> int:
        """Return the time at which the shared circuit would expire."""
        return CIRCUIT.expires_us(state)

    def take_report(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[BreakerOperation | None, State | None]:
        """Return the operation that reports the open circuit, or the failures since the last report."""
        circuit = normalize(Circuit._make(state), self._rules, now_us)
        if circuit.open_until_us:
            return self._report_open(circuit, now_us), None
        return self._report_failures(circuit), None

    def _report_open(self, circuit: Circuit, now_us: int) -> BreakerOperation | None:
        if circuit.generation == self._reported_generation:
            return None
        self._reported_generation = circuit.generation
        return self._report(
            CircuitRequest(
                REPORT_OPEN,
                remaining_us=circuit.open_until_us - now_us,
                age_us=now_us - circuit.opened_us,
                cooldown_us=circuit.cooldown_us,
                owner=self._owner,
                reason=circuit.reason,
            ),
            CircuitSnapshot(circuit, ForcedState()),
        )

    def _report_failures(self, circuit: Circuit) -> BreakerOperation | None:
        total = own_failures(circuit, self._owner)
        if circuit.generation != self.initial.generation or total <= self._reported_failures:
            return None
        self._reported_failures = total
        known = self._snapshot()
        return self._report(
            CircuitRequest(
                REPORT_FAILURES,
                circuit.generation,
                succeeded_us=known.succeeded_us,
                total=total,
                streak=circuit.failures,
                owner=self._owner,
                reason="failures during an outage of the store",
            ),
            known,
        )

    def _report(self, request: CircuitRequest, known: CircuitSnapshot) -> BreakerOperation:
        return BreakerOperation(
            self._name, self._rules, request, lambda: known, self._worker_count, store_clock=self._store_clock
        )


def _state_change(old: State | None, new: Circuit, now_us: int) -> State | None:
    """Return the new state for the store: the circuit, ``GONE``, or ``None`` if nothing changes."""
    if new.ends_us <= now_us:
        return None if old is None else GONE
    return None if new == old else new


def _key_error(name: str, error: bytes) -> Exception:
    text, key = error.decode("utf-8", "replace"), f"{SPACE}:{name}"
    if "WRONGTYPE" not in text:
        return script_error(text, key)
    return StateTypeError(
        f"one of the keys {key!r}:* does not hold the state of a breaker and was left unchanged: {text}"
    )


def _decode(value: Any) -> str:
    if not isinstance(value, bytes):
        raise TypeError(f"expected bytes, got {value!r:.50}")
    return value.decode("utf-8", "replace")


def _parse_probes(text: str) -> tuple[tuple[int, str], ...]:
    rows = [row.split(" ") for row in text.split(",") if row]
    return tuple((int(remaining_us), owner) for remaining_us, owner in rows)
