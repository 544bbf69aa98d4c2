"""How one call goes through all policies: retry, breaker, calls in flight, limit, and the call itself.

The breaker is asked before the limit, or callers would queue only to be refused, and again after a wait,
because it may have opened meanwhile. One flow for coroutines and threads. Whatever a call holds (a probe, a
permit, a token, a response) is noted in one place, so that there is one way to let go of it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta.chance import uniform
from comporta.errors import CircuitOpenError, LimitReachedError, RefusedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.retry.retry import Failed
from comporta.stores.base import Busy
from comporta.stores.effects import Sleep
from comporta.stores.failover import fallback_of
from comporta.threads import clear_up
from comporta.upstream.attempt import Attempt, Discard
from comporta.upstream.report import CallReport, reported
from comporta.upstream.verdict import FAILURE, OK, REFUSED, WELL, Verdict, described

if TYPE_CHECKING:
    from comporta.breaker.admission import Admission
    from comporta.limits.decision import Decision
    from comporta.limits.holding import Permit
    from comporta.retry.backoff import Delays
    from comporta.upstream.parts import Parts

_A_WHILE_NS = 1_000_000
_JITTER = 0.1
"""After a pause that only this worker remembers: by how much of it the callers' wakings are spread."""

_PAUSE_LEAST = 0.001
_CANNOT_WAIT = (GeneratorExit, KeyboardInterrupt, SystemExit)
"""Whoever ends so has no event loop to wait on any more."""


class Call:
    """One call on its way; ``flow`` is driven once."""

    __slots__ = (
        *("_admission", "_answer", "_attempt", "_began_ns", "_delays", "_parts", "_permit", "_repeatable"),
        *("_taken", "_verdict", "report"),
    )

    def __init__(self, parts: Parts, attempt: Attempt, report: CallReport, *, repeatable: bool) -> None:
        self.report = report
        self._parts = parts
        self._attempt = attempt
        self._repeatable = repeatable and parts.retry is not None
        self._began_ns = parts.clock.now_ns()
        self._delays: Delays | None = None
        self._verdict: Verdict = WELL
        self._admission: Admission | None = None
        self._permit: Permit | None = None
        self._taken = False
        self._answer: Any = None

    def made(self) -> Any:
        """Make the call, blocking; the last attempt's answer, or its very own error, is the call's."""
        return _ended(run(self.flow()))

    async def made_async(self) -> Any:
        """Make the call, awaiting."""
        return _ended(await run_async(self.flow()))

    def flow(self) -> Flow[Any]:
        """Make the call; returns the last attempt's answer, which may be ``Failed``."""
        report, count = self.report, self._parts.count
        try:
            yield from self._series()
        except BaseException as error:
            self._note(error)
            if isinstance(error, _CANNOT_WAIT):
                clear_up(run, self._let_go())
                count = partial(clear_up, count)
            else:
                yield from self._let_go()
            raise
        else:
            report.outcome, report.why = self._verdict.kind, self._verdict.why
            return self._answer
        finally:
            report.took = (self._parts.clock.now_ns() - self._began_ns) / 1e9
            reported(report)  # once more: calls through other upstreams may have been part of this one
            count(report)

    def _note(self, error: BaseException) -> None:
        """Put into the report why there is no answer."""
        report = self.report
        if isinstance(error, CircuitOpenError):
            report.outcome, report.why = "open", error.why
        elif isinstance(error, LimitReachedError):
            report.outcome, report.why = "limited", str(error)
        elif isinstance(error, Exception):
            report.outcome, report.why = "error", described(error)

    def _series(self) -> Flow[None]:
        """Make attempts until one is good, or the last."""
        yield from self._once()
        while True:
            owed = self._admission
            delay = yield from self._judged()
            if delay is None:
                return
            yield from self._discarded()
            if delay:
                yield Sleep(self._parts.clock, delay)
                self.report.waited += delay
            failed = self._answer
            try:
                yield from self._once()
            except RefusedError as refusal:
                yield from self._unheard(owed)
                if type(failed) is Failed:
                    raise refusal from failed.error
                raise

    def _judged(self) -> Flow[float | None]:
        """Tell everybody about an attempt; returns how long to wait for the next, if there is to be one."""
        if self._parts.per_attempt:
            yield from self._told()
            return (yield from self._delay())
        delay = yield from self._delay()
        yield from self._told(counts=delay is None)
        return delay

    def _once(self) -> Flow[None]:
        """Make one attempt, as soon as it may be made."""
        parts, report = self._parts, self.report
        admission = None if parts.breaker is None else parts.breaker.standing_now()
        if admission is None:
            yield from self._admitted()
        else:
            self._admission, report.circuit = admission, admission.phase
        if parts.permits is not None or not self._had_at_once():
            yield from self._waited()
        if parts.budget is not None and not report.attempts:
            parts.budget.called()
        report.attempts += 1
        self._taken = False
        answer = self._answer = yield self._attempt
        if type(answer) is Failed:
            self._verdict = parts.judge(None, answer.error)
        else:
            self._verdict = parts.judge(answer, None)
        if self._permit is not None:
            yield from self._permit_given()

    def _had_at_once(self) -> bool:
        """Take from a limit on this machine, if there is something and nobody waits for it."""
        parts = self._parts
        if parts.take_now is None or parts.waiting or parts.pause.told:
            return False
        try:
            self._taken = not parts.take_now(None, 1)
        except Busy:
            return False
        return self._taken

    def _waited(self) -> Flow[None]:
        """Wait for a place among the calls in flight, then for the limit."""
        clock = self._parts.clock
        began_ns = clock.now_ns()
        until_ns = began_ns + self._patience_ns(began_ns)
        try:
            yield from self._permitted(until_ns)
            yield from self._limited(until_ns)
        finally:
            waited_ns = clock.now_ns() - began_ns
            self.report.waited += waited_ns / 1e9
        if waited_ns > _A_WHILE_NS:
            yield from self._still_admitted()

    def _patience_ns(self, now_ns: int) -> int:
        """Return how long an attempt may wait; no other than the first begins after the deadline of all."""
        parts = self._parts
        if parts.retry is None or parts.retry.backoff.deadline is None or not self.report.attempts:
            return parts.max_wait_ns
        left_ns = self._began_ns + round(parts.retry.backoff.deadline * 1e9) - now_ns
        return max(0, min(parts.max_wait_ns, left_ns))

    def _admitted(self) -> Flow[None]:
        """Ask the breaker; what it says to this call is held until there is a result."""
        breaker = self._parts.breaker
        if breaker is None:
            return
        admission = yield from breaker.verbs.admitting()
        self.report.circuit = admission.phase
        if not admission:
            raise admission.refusal(breaker.name)
        self._admission = admission

    def _still_admitted(self) -> Flow[None]:
        """Ask again after a wait; a probe stays one until its deadline, and so does a place in a ramp."""
        before, breaker = self._admission, self._parts.breaker
        if before is None or breaker is None or breaker.view.holds(before):
            return
        try:
            yield from self._admitted()
        except CircuitOpenError:
            if self.report.circuit != "ramp" or before.phase != "ramp":
                raise

    def _permitted(self, until_ns: int) -> Flow[None]:
        permits = self._parts.permits
        if permits is None:
            return
        self._permit = yield from permits.taking(self._left(until_ns))
        if self._permit is None:
            raise permits.refusal()

    def _permit_given(self) -> Flow[None]:
        permits, permit = self._parts.permits, self._permit
        if permits is not None and permit is not None:
            yield from permits.giving(permit)
            self._permit = None

    def _limited(self, until_ns: int) -> Flow[None]:
        """Take from the limit, in line with the others."""
        patience, store = self._left(until_ns), self._parts.limiter.store
        alone = fallback_of(store)
        yield from self._rested(until_ns)
        self._taken = yield from self._parts.limiter.verbs.acquire(None, 1, self._left(until_ns))
        if not self._taken:
            raise (yield from self._limit_reached(patience))
        if alone is None and fallback_of(store) is not None:  # since just now: it says nothing of a pause
            yield from self._rested(until_ns)

    def _rested(self, until_ns: int) -> Flow[None]:
        """Wait for the end of a pause of which the shared state cannot remind: it is out of reach.

        When that is back it is told what it may not know.
        """
        parts = self._parts
        left = parts.pause.left(parts.clock)
        if left and parts.pause.doubtful and fallback_of(parts.limiter.store) is None:
            with suppress(StateError):  # it is gone again
                yield from self._pause(left)
        if fallback_of(parts.limiter.store) is None:
            return
        parts.pause.doubtful = left > 0
        left = max(left, parts.limiter.verbs.paused_us() / 1e6)
        if not left:
            return
        left *= uniform(1, 1 + _JITTER)
        if left > self._left(until_ns):
            raise _paused(parts.name, left)
        yield Sleep(parts.clock, left)

    def _limit_reached(self, patience: float) -> Flow[LimitReachedError]:
        """Return the error that says why there was no room, and when there may be."""
        parts = self._parts
        soonest = 1 / parts.limiter.config.rate
        with suppress(StateError):
            stands: Decision = yield from parts.limiter.verbs.peek(None)
            if stands.paused:
                return _paused(parts.name, stands.paused)
            soonest = stands.retry_after or soonest
        text = f"{parts.name}: the limit of {parts.limiter.config} left no room in {patience:.3g} s"
        return LimitReachedError(text, parts.name, soonest)

    def _left(self, until_ns: int) -> float:
        return max(0, until_ns - self._parts.clock.now_ns()) / 1e9

    def _told(self, *, counts: bool = True) -> Flow[None]:
        """Tell breaker and limit what an attempt showed; in the breaker it may be given back uncounted.

        The call is over: what becomes of the telling is no reason to spoil its result.
        """
        try:  # noqa: SIM105 - suppress() would be a microsecond on the way of every call
            yield from self._breaker_told(counts=counts)
        except StateError:
            pass
        self._admission = None
        try:  # noqa: SIM105 - see above
            yield from self._limit_told()
        except StateError:
            pass

    def _breaker_told(self, *, counts: bool) -> Flow[None]:
        breaker, admission, verdict = self._parts.breaker, self._admission, self._verdict
        if breaker is None or admission is None:
            return
        if counts and verdict.kind == OK:
            if not breaker.succeed_now(admission):
                yield from breaker.verbs.succeeding_slowly(admission)
        elif counts and verdict.kind == FAILURE:
            yield from breaker.verbs.failing(admission, verdict.why)
        else:
            yield from breaker.verbs.giving_back(admission)

    def _limit_told(self) -> Flow[None]:
        parts, verdict = self._parts, self._verdict
        if verdict.pause:
            yield from self._pause(verdict.pause)
        if parts.degradation is None:
            return
        if verdict.kind == REFUSED:
            yield from parts.degradation.verbs.dropping(parts.accepted_rate)
        elif verdict.kind == OK:
            parts.accepted.add(parts.clock.now_ns())
            if parts.degradation.verbs.is_due():
                yield from parts.degradation.verbs.climbing()

    def _pause(self, seconds: float) -> Flow[None]:
        """Have the whole fleet leave the upstream alone, for as long as it wants and we allow."""
        parts = self._parts
        seconds = min(seconds, parts.pause_max)
        if seconds >= _PAUSE_LEAST:  # the limiter takes none at all for an order to go on
            parts.pause.until(parts.clock, seconds)
            parts.pause.doubtful = True
            yield from parts.limiter.verbs.pause(seconds)
            parts.pause.doubtful = False

    def _unheard(self, owed: Admission | None) -> Flow[None]:
        """Count a series that ends because its next attempt was refused, where only its end counts."""
        parts = self._parts
        if parts.per_attempt or parts.breaker is None or owed is None or self._verdict.kind != FAILURE:
            return
        if not owed.probe:  # that one has been given back
            with suppress(StateError):
                yield from parts.breaker.verbs.failing(owed, self._verdict.why)

    def _delay(self) -> Flow[float | None]:
        """Return how long to wait before the next attempt; nothing if there is to be none."""
        parts, verdict = self._parts, self._verdict
        if not self._worth_it() or parts.retry is None:
            return None
        if self._delays is None:
            self._delays = parts.retry.delays()
        elapsed = (parts.clock.now_ns() - self._began_ns) / 1e9
        delay = self._delays.next_delay(verdict.pause or 0.0, elapsed)
        if delay is None or self._known_open():
            return None
        if parts.budget is not None and not (yield from parts.budget.withdrawing()):
            return None
        # What is no longer than the pause is kept by the limit, with everybody else's.
        kept = verdict.pause and (verdict.kind == REFUSED or delay <= min(verdict.pause, parts.pause_max))
        return 0.0 if kept else delay

    def _worth_it(self) -> bool:
        """Whether another attempt may do better, and may be made in the time one is ready to wait."""
        parts, verdict = self._parts, self._verdict
        if not (self._repeatable and verdict.repeat) or (verdict.pause or 0.0) > parts.max_wait:
            return False
        answer = self._answer
        return type(answer) is not Failed or parts.retry is None or parts.retry.wants(answer.error)

    def _known_open(self) -> bool:
        """Whether the breaker would refuse, as far as is known: then the answer in hand is the better one."""
        breaker = self._parts.breaker
        admission = None if breaker is None else breaker.admit_now()
        return admission is not None and not admission and admission.phase != "ramp"

    def _discarded(self) -> Flow[None]:
        """Let go of a response that nobody will read."""
        if type(self._answer) is not Failed:
            yield Discard(self._answer)
            self._answer = None

    def _let_go(self) -> Flow[None]:
        """Give back whatever is held by a call that ends without a result."""
        parts = self._parts
        givings = [self._permit_given(), self._discarded()]
        if parts.breaker is not None and self._admission is not None:
            givings.append(parts.breaker.verbs.giving_back(self._admission))
        if self._taken:
            givings.append(parts.limiter.verbs.release(None, 1))
        yield from _each(givings)


def _ended(answer: Any) -> Any:
    if type(answer) is Failed:
        answer.raise_it()
    return answer


def _each(flows: list[Flow[None]]) -> Flow[None]:
    """Run flows one after the other, the rest of them also if one is cancelled."""
    if flows:
        try:
            with suppress(StateError):
                yield from flows[0]
        finally:
            yield from _each(flows[1:])


def _paused(name: str, left: float) -> LimitReachedError:
    return LimitReachedError(f"{name}: paused by the upstream for {left:.1f} s more", name, left)
