"""What one can ask of a breaker, each verb once, as a flow."""

from __future__ import annotations

import os

from comporta.breaker.admission import (
    FAILURE,
    FORCES,
    PHASES,
    SUCCESS,
    Admission,
    BreakerState,
    ProbeState,
    why_of,
)
from comporta.breaker.operation import CHANGES, Step
from comporta.breaker.state import (
    ADMIT,
    FAIL,
    FORGET,
    GIVE_BACK,
    LOOK,
    OPEN,
    SUCCEED,
    WHY_BYTES_MAX,
    Reply,
)
from comporta.breaker.view import View
from comporta.flow import Flow
from comporta.steps import WHOLE
from comporta.stores.effects import Apply
from comporta.stores.failover import fallback_of
from comporta.stores.records import Delete, Write


class Ask:
    """Effect: take a step of the circuit."""

    __slots__ = ("_step", "_view")

    def __init__(self, view: View, step: Step) -> None:
        self._view = view
        self._step = step

    def block(self) -> Reply:
        """Take it, blocking."""
        return self._view.ask(self._step)

    async def wait(self) -> Reply:
        """Take it, awaiting."""
        return await self._view.ask_async(self._step)


class Glance:
    """Effect: look at the circuit, which is no use of the breaker: its view is not kept fresh for that."""

    __slots__ = ("_view",)

    def __init__(self, view: View) -> None:
        self._view = view

    def block(self) -> Reply:
        """Look, blocking."""
        return self._view.glance(self._view.step(LOOK), self._view.now_ns())

    async def wait(self) -> Reply:
        """Look, awaiting."""
        return await self._view.glance_async(self._view.step(LOOK), self._view.now_ns())


class Verbs:
    """The verbs of one breaker."""

    __slots__ = ("view",)

    def __init__(self, view: View) -> None:
        self.view = view

    def admitting(self) -> Flow[Admission]:
        """Ask whether a call may be made."""
        admission = self.view.admit_now()
        if admission is None:
            probe = int.from_bytes(os.urandom(6), "little") + 1  # not random(): forked children share that
            reply: Reply = yield Ask(self.view, self.view.step(ADMIT, probe=probe))
            admission = self.view.admission(reply, self.view.now_ns())
        return admission

    def succeeding(self, admission: Admission | None = None) -> Flow[None]:
        """Tell that a call succeeded; without an admission, that the upstream is well."""
        if admission is None:
            if not self.view.plain:
                self.view.count_success()
        elif self.view.succeed_now(admission):
            return
        yield from self.succeeding_slowly(admission)

    def succeeding_slowly(self, admission: Admission | None) -> Flow[None]:
        """Tell the state of a success that ``succeed_now`` could not settle."""
        yield Ask(self.view, self.view.step(SUCCEED, admission))

    def failing(self, admission: Admission | None = None, why: object = None) -> Flow[None]:
        """Tell that a call failed; ``why`` is an error or a few words."""
        if admission is not None:
            if self.view.outdated(admission):
                return
            self.view.note_slow(admission)
        yield Ask(self.view, self.view.step(FAIL, admission, why=why_of(why)))

    def giving_back(self, admission: Admission) -> Flow[None]:
        """Tell that a call had no result; a probe may be had by another."""
        if admission.probe:
            yield Ask(self.view, self.view.step(GIVE_BACK, admission))

    def ending(self, admission: Admission, outcome: str, error: object) -> Flow[None]:
        """Tell how an admitted call ended, where that could not be settled at once."""
        if outcome == SUCCESS:
            yield from self.succeeding_slowly(admission)
        elif outcome == FAILURE:
            yield from self.failing(admission, error)
        else:
            yield from self.giving_back(admission)

    def looking(self) -> Flow[Reply]:
        """Ask how the circuit stands."""
        reply: Reply = yield Ask(self.view, self.view.step(LOOK))
        return reply

    def resetting(self) -> Flow[None]:
        """Let it be as if never used."""
        yield Ask(self.view, self.view.step(FORGET))

    def forcing(self, how: str | None, why: str) -> Flow[None]:
        """Hold it open or closed for all who share it, until revoked with ``None``."""
        if how is None:
            yield Apply(self.view.store, Delete(CHANGES, self.view.name))
        elif how in FORCES.values():
            value = f"{how} {why_of(why)}".strip().encode("utf-8", "replace")[: WHY_BYTES_MAX + 10]
            yield Apply(self.view.store, Write(CHANGES, self.view.name, value, None))
        else:
            raise ValueError(f"how must be 'open', 'closed' or None, got {how!r:.50}")
        yield from self.looking()

    def telling(self) -> Flow[BreakerState]:
        """Tell how the circuit stands, for a health page."""
        reply: Reply = yield Glance(self.view)
        return BreakerState(
            failures=reply.failures,
            degraded=reply.phase == OPEN,
            degraded_until=self.view.open_until(),
            phase=PHASES[reply.phase],
            why=reply.why,
            since=self.view.since(),
            probes=tuple(ProbeState(owner, left_us / 1e6) for left_us, owner in reply.probes),
            forced=FORCES.get(reply.forced),
            share=reply.share / WHOLE,
            fallback=fallback_of(self.view.store),
        )
