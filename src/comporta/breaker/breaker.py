"""The faces of a breaker: ``async with breaker``, ``@breaker``, ``breaker.sync``, and the verbs one by one.

They decide nothing: what a worker knows is in ``view.py``, what it asks is a flow in ``verbs.py``, and the
way of a decorated function through a closed circuit is in ``guard.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

from comporta.breaker.admission import (
    CANCELLED,
    FAILURE,
    NOTHING,
    PHASES,
    REFUSED,
    SUCCESS,
    Admission,
    BadResultError,
    BreakerState,
    was_refused,
)
from comporta.breaker.config import BreakerConfig
from comporta.breaker.guard import guarded, guarded_async
from comporta.breaker.state import OPEN, Reply
from comporta.breaker.verbs import Verbs
from comporta.breaker.view import count, view_of
from comporta.callables import is_awaited
from comporta.errors import StateError
from comporta.flow import Flow, run, run_async
from comporta.metrics import current_metrics
from comporta.names import checked_name
from comporta.stores.base import Store
from comporta.stores.failover import Fallback, fallback_of
from comporta.stores.urls import default_url, store_of
from comporta.threads import clear_up

F = TypeVar("F", bound=Callable[..., Any])

_entered: ContextVar[tuple[Any, ...] | None] = ContextVar("comporta_breakers_entered", default=None)
"""The calls under way in this task or thread: (breaker's verbs, admission, the one before)."""


class CircuitBreaker:
    """A circuit shared by whoever uses the same state and name.

    ``state`` is a URL or a store; left out it is what the environment says, and otherwise this machine. The
    other keywords are those of :class:`BreakerConfig`, which may be given whole as ``config``.

    ``counts_error`` says of an exception whether it is a failure of the upstream (default: every
    ``Exception``); one that is not shows that it answered, and counts as a success. ``counts_result`` says so
    of what a decorated function returns. A cancelled call is neither; nor is one that was refused: by another
    breaker or a limit on its way (:class:`comporta.RefusedError`), or by the upstream with status 429.

    A refused call raises :class:`comporta.CircuitOpenError`.
    """

    def __init__(
        self,
        name: str,
        threshold: int | None = 5,
        cooldown_seconds: float = 30.0,
        *,
        state: str | Store | None = None,
        config: BreakerConfig | None = None,
        counts_error: Callable[[Exception], bool] | None = None,
        counts_result: Callable[[Any], bool] | None = None,
        **others: Any,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r:.50}")
        checked_name(name)
        if config is None:
            config = BreakerConfig(threshold, cooldown_seconds, **others)
        elif not isinstance(config, BreakerConfig):
            raise TypeError(f"config must be a BreakerConfig, got {config!r:.50}")
        elif others or (threshold, cooldown_seconds) != (5, 30.0):
            raise TypeError(
                f"config says it all: leave out {', '.join(others) or 'threshold and cooldown_seconds'}"
            )
        for field, predicate in (("counts_error", counts_error), ("counts_result", counts_result)):
            if predicate is not None and not callable(predicate):
                raise TypeError(f"{field} must be a function, got {predicate!r:.50}")
        if state is None:
            state = default_url(distributed=True)
        self.name = name
        self.config = config
        self.store = store_of(state)
        self.counts_error = counts_error
        self.counts_result = counts_result
        self.view = view_of(self.store, name, config)
        self.verbs = Verbs(self.view)
        self.admit_now = self.view.admit_now
        self.succeed_now = self.view.succeed_now
        self.sync = SyncBreaker(self)

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.name!r}, {self.config}>"

    @property
    def threshold(self) -> int | None:
        """After how many failures in a row it opens."""
        return self.config.threshold

    @property
    def cooldown_seconds(self) -> float:
        """For how long it stays open."""
        return self.config.cooldown_seconds

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker is on its own; nothing if it is not."""
        return fallback_of(self.store)

    @property
    def is_degraded(self) -> bool:
        """Whether the circuit is open: exact on one machine; on a server as of ``staleness`` seconds ago.

        Without such knowledge it is one blocking read, within the store's deadline.
        """
        return self._seen().phase == OPEN

    @property
    def consecutive_failures(self) -> int:
        """How many calls in a row have failed, in the whole fleet."""
        return self._seen().failures

    @property
    def degraded_until(self) -> float | None:
        """Until when it is open, in Unix seconds; nothing if it is not, or is held open by hand."""
        self._seen()
        return self.view.open_until()

    @property
    def phase(self) -> str:
        """``"closed"``, ``"open"``, ``"half_open"`` or ``"ramp"``."""
        return PHASES[self._seen().phase]

    def _seen(self) -> Reply:
        """Return what is known, unless time alone may have changed it; on this machine a look is cheap."""
        view = self.view
        known = view.standing is not None if view.exact else not view.instant
        return (view.good() if known else None) or run(self.verbs.looking())

    async def is_degraded_async(self) -> bool:
        """Ask the state whether the circuit is open."""
        return (await run_async(self.verbs.looking())).phase == OPEN

    async def allow(self) -> Admission:
        """Ask whether a call may be made; its result is to be told with the admission."""
        return await run_async(self.verbs.admitting())

    async def record_failure(self, error: object = None, admission: Admission | None = None) -> None:
        """Tell that a call failed, and why: an exception, or a few words."""
        await run_async(self.verbs.failing(admission, error))

    async def record_success(self, admission: Admission | None = None) -> None:
        """Tell that a call succeeded; without an admission it closes the circuit whatever its phase."""
        await run_async(self.verbs.succeeding(admission))

    async def give_back(self, admission: Admission) -> None:
        """Tell that an admitted call had no result, so that another may try."""
        await run_async(self.verbs.giving_back(admission))

    async def try_recover(self) -> bool:
        """Ask the state; true if the circuit is not open, or not any more. Time alone ends a cooldown."""
        return not await self.is_degraded_async()

    async def reset(self) -> None:
        """Forget everything: closed, no failures. Calls under way no longer count."""
        await run_async(self.verbs.resetting())

    async def force(self, how: str | None, why: str = "") -> None:
        """Hold the circuit ``"open"`` or ``"closed"`` for all who share it, until revoked with ``None``."""
        await run_async(self.verbs.forcing(how, why))

    async def get_state(self) -> BreakerState:
        """Ask the state how the circuit stands, for a health page."""
        return await run_async(self.verbs.telling())

    async def aclose(self) -> None:
        """Close the store's connections, those of this event loop included; they open again when needed."""
        if hasattr(self.store, "aclose"):
            await self.store.aclose()

    def __call__(self, function: F) -> F:
        """Guard a function or whatever can be called, blocking or async as it is."""
        made = guarded_async if is_awaited(function) else guarded
        return made(self, function)  # type: ignore[return-value]

    async def __aenter__(self) -> Admission:
        admission = self.standing_now()
        if admission is None:
            admission = await run_async(self.verbs.admitting())
        _enter(self, admission)
        return admission

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admission = _left(self)
        if error is not None or not self.well(admission):
            await self.ended_async(admission, error)

    def standing_now(self) -> Admission | None:
        """Return the admission for everybody, if the circuit is closed and nothing has failed."""
        view = self.view
        standing = view.standing
        if standing is None or view.exact:
            return standing
        if view.now_ns() >= view.good_until_ns:
            return None
        view.used = True
        return standing

    def well(self, admission: Admission) -> bool:
        """Note a success on the shortest way; false if there is more to be done about it."""
        view = self.view
        if not view.plain or admission is not view.standing or current_metrics() is not None:
            return False
        if not view.exact:
            view.succeeded_ns = view.now_ns()
        return True

    def ended(self, admission: Admission, error: BaseException | None, result: object = NOTHING) -> None:
        """Tell how an admitted call ended, blocking; the call's own error goes before one of the state."""
        run(self._ending(admission, error, result))

    async def ended_async(
        self, admission: Admission, error: BaseException | None, result: object = NOTHING
    ) -> None:
        """Tell how an admitted call ended, awaiting."""
        if isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit):
            clear_up(self.ended, admission, error)  # whoever ends so can no longer wait
        else:
            await run_async(self._ending(admission, error, result))

    def _ending(self, admission: Admission, error: BaseException | None, result: object) -> Flow[None]:
        outcome = CANCELLED
        try:
            outcome, error = self._judged(error, result)
        finally:
            count("breaker_calls", self.name, outcome=outcome)
            with suppress(StateError):
                if outcome != SUCCESS or not self.succeed_now(admission):
                    yield from self.verbs.ending(admission, outcome, error)

    def _judged(self, error: BaseException | None, result: object) -> tuple[str, BaseException | None]:
        """Return what a call was to the upstream, and why.

        A predicate may raise: then nobody knows what the call was, and its error is for all to see.
        """
        if error is None:
            if self.counts_result is None or result is NOTHING or not self.counts_result(result):
                return SUCCESS, None
            return FAILURE, BadResultError(result)
        if not isinstance(error, Exception):
            return CANCELLED, error
        if was_refused(error):
            return REFUSED, error
        counts = self.counts_error is None or self.counts_error(error)
        return (FAILURE if counts else SUCCESS), error


class SyncBreaker:
    """The verbs of a breaker, blocking: ``breaker.sync``."""

    __slots__ = ("_breaker", "_verbs")

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._verbs = breaker.verbs

    def allow(self) -> Admission:
        """Ask whether a call may be made; its result is to be told with the admission."""
        return run(self._verbs.admitting())

    def record_failure(self, error: object = None, admission: Admission | None = None) -> None:
        """Tell that a call failed, and why: an exception, or a few words."""
        run(self._verbs.failing(admission, error))

    def record_success(self, admission: Admission | None = None) -> None:
        """Tell that a call succeeded; without an admission it closes the circuit whatever its phase."""
        run(self._verbs.succeeding(admission))

    def give_back(self, admission: Admission) -> None:
        """Tell that an admitted call had no result, so that another may try."""
        run(self._verbs.giving_back(admission))

    def is_degraded(self) -> bool:
        """Ask the state whether the circuit is open."""
        return run(self._verbs.looking()).phase == OPEN

    def try_recover(self) -> bool:
        """Ask the state; true if the circuit is not open, or not any more."""
        return not self.is_degraded()

    def reset(self) -> None:
        """Forget everything: closed, no failures. Calls under way no longer count."""
        run(self._verbs.resetting())

    def force(self, how: str | None, why: str = "") -> None:
        """Hold the circuit ``"open"`` or ``"closed"`` for all who share it, until revoked with ``None``."""
        run(self._verbs.forcing(how, why))

    def get_state(self) -> BreakerState:
        """Ask the state how the circuit stands, for a health page."""
        return run(self._verbs.telling())

    def __enter__(self) -> Admission:
        admission = self._breaker.standing_now()
        if admission is None:
            admission = run(self._verbs.admitting())
        _enter(self._breaker, admission)
        return admission

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        admission = _left(self._breaker)
        if error is not None or not self._breaker.well(admission):
            self._breaker.ended(admission, error)


def _enter(breaker: CircuitBreaker, admission: Admission) -> None:
    """Note that a call of this task or thread is under way, or refuse it."""
    if not admission:
        count("breaker_calls", breaker.name, outcome=REFUSED)
        raise admission.refusal(breaker.name)
    _entered.set((breaker.view, admission, _entered.get()))


def _left(breaker: CircuitBreaker) -> Admission:
    """Return the admission of the latest call of this breaker that was under way here.

    One that was begun in another context (a framework may enter a block in one thread and leave it in
    another) is not known here: its result is of the circuit as it is now, and a probe is lost until its
    deadline.
    """
    entry = _entered.get()
    if entry is not None and entry[0] is breaker.view:
        _entered.set(entry[2])
        latest: Admission = entry[1]
        return latest
    skipped: list[tuple[Any, Admission]] = []
    while entry is not None:
        view, admission, before = entry
        if view is breaker.view:
            for others in reversed(skipped):
                before = (*others, before)
            _entered.set(before)
            found: Admission = admission
            return found
        skipped.append((view, admission))
        entry = before
    return breaker.view.unknown()
