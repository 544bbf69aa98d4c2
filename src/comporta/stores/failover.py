"""When the shared state is out of reach, every worker goes on alone, within its share.

A :class:`FailoverStore` stands in front of a shared store. As long as that answers, it adds nothing. When it
fails, the caller who noticed has paid the deadline; from then on operations go to this worker's own memory,
in the form they take there (``Operation.alone``: a limit is divided by the number of workers), until the
keeper (``keeper.py``) has found the shared state in order again. Then what was granted meanwhile is reported
to it, and the fleet goes on together. Each switch is an event, a line in the log and a figure.

A call that may have been carried out is never sent again: it counts as spent, and the answer is a local one.

Some troubles concern one key only (something else lives there, the table has no room for it): that key alone
goes by the local share, and the key itself is left as it is. A server that does not let us in is an error at
the start; later it is an outage like others, but one in which nothing is ever simply let through.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar, cast, runtime_checkable

from comporta import events, forks
from comporta.clock import Clock
from comporta.errors import (
    StateDeniedError,
    StateError,
    StateForbiddenError,
    StateFullError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.metrics import current_metrics
from comporta.stores.base import Kind, Operation, Outage, State, Store
from comporta.stores.effects import asked
from comporta.stores.keeper import Keeper
from comporta.stores.memory import MemoryStore

R = TypeVar("R")

KEYS_ALONE_MAX = 100_000
"""How many keys a worker on its own keeps apart; more are refused until it is no longer on its own."""

KEYS_NAMED_MAX = 1000
"""How many unusable keys are named in events; after that they are only counted."""


class Opens(Protocol):
    """Opens the shared store; raises ``StateError`` where that cannot be done now."""

    def __call__(self) -> Store: ...


@runtime_checkable
class Reporting(Protocol):
    """A kind of state about which the shared store is told when it is back."""

    def settle(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[Operation[object] | None, State | None]:
        """Return what reports it, and the state from which that is struck."""


class Fallback(NamedTuple):
    """That a worker is on its own: since when (Unix seconds), why, and with what share of the limit."""

    since: float
    why: str
    workers: int


class Alone:
    """One outage: what is known of it, and this worker's own state meanwhile."""

    __slots__ = ("cause", "full", "local", "outage", "shut", "unsent")

    def __init__(self, outage: Outage, cause: StateError, clock: Clock) -> None:
        self.outage = outage
        self.full = outage._replace(full=True)
        self.cause = cause
        self.local = MemoryStore(clock, KEYS_ALONE_MAX)
        self.shut = False
        self.unsent: list[Operation[object]] = []

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation on this worker's own state, in the form it takes there."""
        if self.shut:
            raise StateDeniedError(str(self.cause)) from self.cause
        own = operation.alone(self.outage)
        if own is None:
            raise StateUnavailableError(
                f"not possible without the shared state: {self.cause}"
            ) from self.cause
        try:
            return self.local.apply(own)
        except StateFullError:
            refusing = operation.alone(self.full)
            return self.local.apply(refusing or own)

    def owed(self) -> list[Operation[object]]:
        """Return what reports to the shared state all that was granted here and not reported yet."""
        found: list[Operation[object]] = []

        def settle(space: str, key: str, kind: Kind, state: State, now_us: int) -> State | None:
            if not isinstance(kind, Reporting):
                return None
            report, settled = kind.settle(space, key, state, now_us)
            if report is not None:
                found.append(report)
            return settled

        self.local.revisit(settle)
        return found


class FailoverStore:
    """A shared store, and this worker's share of its limits when it is out of reach.

    ``direct`` is there to be looked at by the hot path: all is well and the keeper runs. ``local``: the
    shared store decides in this process (:class:`comporta.stores.base.LocalStore`).
    """

    def __init__(self, opens: Opens, address: str, clock: Clock, *, local: bool = False) -> None:
        self.address = address
        self.clock = clock
        self.local = local
        self.direct = False
        self.alone: Alone | None = None
        self._opens = opens
        self._primary: Store | None = None
        self._beside: Alone | None = None
        self._named: set[str] = set()
        self._lock = Lock()
        self.reached = False
        self.keeper = Keeper(self)
        forks.register(self)

    @classmethod
    def of(cls, store: Store, address: str) -> FailoverStore:
        """Put a store that is open already under this protection."""
        return cls(lambda: store, address, store.clock, local=hasattr(store, "bind"))

    @property
    def workers(self) -> int:
        """How many workers share this state, as far as this one knows."""
        return self.keeper.census.workers

    @property
    def fallback(self) -> Fallback | None:
        """Whether this worker is on its own, and why."""
        alone = self.alone
        if alone is None:
            return None
        return Fallback(alone.outage.since, alone.outage.why, alone.outage.workers)

    @property
    def primary(self) -> Store:
        """The shared store, opened when first asked for."""
        primary = self._primary
        if primary is None:
            with self._lock:
                primary = self._primary = self._primary or self._opens()
            if hasattr(primary, "heard"):
                cast(Any, primary).heard = self.keeper.census.heard
        return primary

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation where it belongs, or alone."""
        if not self.direct:
            self._watch()
        alone = self.alone
        if alone is None:
            try:
                reply = self.primary.apply(operation)
            except StateError as error:
                alone = self.fell(error)
            else:
                self.reached = True
                return reply
        self._count()
        return alone.apply(operation)

    async def apply_async(self, operation: Operation[R]) -> R:
        """Carry out an operation where it belongs, or alone."""
        if not self.direct:
            self._watch()
        alone = self.alone
        if alone is None:
            try:
                reply = await self.primary.apply_async(operation)
            except StateError as error:
                alone = self.fell(error)
            else:
                self.reached = True
                return reply
        self._count()
        return alone.apply(operation)

    def apply_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out some operations, in one call where that can be; returns each reply, or its key's error.

        For what makes sense only where all can see it: where the shared state is out of reach it raises.
        """
        if not self.direct:
            self._watch()
        try:
            replies = asked(self._together(), operations)
        except StateError as error:
            self.fell(error)
            raise
        self.reached = True
        return replies

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space; they are where all can see them, or nowhere."""
        return self._together().entries(space)

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return await self._together().entries_async(space)

    def fell(self, error: StateError, *, everywhere: bool = False) -> Alone:
        """Note that the shared store failed, and return where to go on; raises what must be loud.

        ``everywhere``: what is forbidden is not the use of some key only.
        """
        error.__traceback__ = None  # or whoever asked would be kept in memory as long as the outage lasts
        if isinstance(error, StateTypeError | StateFullError):
            return self._aside(error)
        if isinstance(error, StateDeniedError) and not self.reached:
            raise error
        if isinstance(error, StateForbiddenError) and not everywhere:
            return self._aside(error)
        with self._lock:
            self.direct = False
            if self.alone is not None:
                return self.alone
            alone = self.alone = self._begin(error)
        self.keeper.wake()
        share = f"1/{alone.outage.workers} of each limit"
        severity = "error" if alone.outage.denied else "warning"
        self._say("state_fallback", f"in fallback ({share} for this worker): {error}", severity)
        _figure(self.address, "fallback")
        return alone

    def denied(self, error: StateDeniedError) -> None:
        """Note that the server shuts this worker out, where it seemed only to be away: nothing stays open.

        What was open until now starts empty, in a state of its own. Before the server ever answered it is an
        error for all who ask: the first may only not have waited to hear it.
        """
        with self._lock:
            alone = self.alone
            if alone is not None and not alone.outage.denied:
                alone, before = self._begin(error), alone
                alone.outage = alone.outage._replace(since=before.outage.since)
                alone.unsent = [*before.unsent, *before.owed()]
                alone.shut = not self.reached
                self.alone = alone

    def returned(self) -> None:
        """Note that the shared store is in order again."""
        with self._lock:
            alone, self.alone = self.alone, None
            self.reached = self.direct = True
        if alone is not None:
            seconds = max(0.0, time.time() - alone.outage.since)
            self._say("state_return", f"back to the shared state after {seconds:.1f} s", "info")
            _figure(self.address, "shared")

    def close(self) -> None:
        """Say goodbye to the other workers and let go of connections and files."""
        self.direct = False
        self.keeper.stop()
        if self._primary is not None:
            self._primary.close()

    async def aclose(self) -> None:
        """Say goodbye and close connections, those of the running event loop too; files stay open."""
        import asyncio  # noqa: PLC0415 - see clock.py

        self.direct = False
        await asyncio.to_thread(self.keeper.stop)
        if self._primary is not None and hasattr(self._primary, "aclose"):
            await self._primary.aclose()

    def after_fork(self) -> None:
        """Be a worker of its own: with its own share, should the parent have been alone."""
        forks.renew(self._lock)
        self.direct = False
        self._beside = None  # what it granted is the parent's business
        if self.alone is not None:
            self.alone = self._begin(self.alone.cause)

    def _watch(self) -> None:
        """Have the keeper run from the first use on, in whatever process that is."""
        running = self.keeper.start()
        with self._lock:
            self.direct = running and self.alone is None and self._primary is not None

    def _together(self) -> Store:
        if self.alone is not None:
            raise StateUnavailableError(
                f"not possible without the shared state: {self.alone.cause}"
            ) from self.alone.cause
        return self.primary

    def _begin(self, error: StateError) -> Alone:
        denied = isinstance(error, StateDeniedError)
        now_us = self.clock.now_ns() // 1000
        outage = Outage(time.time(), now_us, str(error), self.workers, denied)
        return Alone(outage, error, self.clock)

    def _aside(self, error: StateError) -> Alone:
        """Let one key go by the local share; it is named once."""
        with self._lock:
            beside = self._beside
            if beside is None or beside.outage.workers < self.workers:
                beside = self._beside = self._begin(error)
            text = str(error)
            new = text not in self._named and len(self._named) < KEYS_NAMED_MAX
            if new:
                self._named.add(text)
        if new:
            self._say("state_key_unusable", f"{text}; this key goes by the local share", "error")
        _figure(self.address, "key")
        return beside

    def _say(self, kind: str, text: str, severity: str) -> None:
        events.publish(kind, self.address, text, severity)

    def _count(self) -> None:
        sink = current_metrics()
        if sink is not None:
            with suppress(Exception):  # a sink that fails must not stop a decision
                sink.counter("state_fallback_decisions", 1, state=self.address)


def fallback_of(store: Store) -> Fallback | None:
    """Return whether a store is out of reach, and why; only a shared one can be."""
    return store.fallback if isinstance(store, FailoverStore) else None


def _figure(address: str, to: str) -> None:
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):
            sink.counter("state_switches", 1, state=address, to=to)
