"""What this process knows about one circuit, and how it reads and updates it in the store.

If other processes share the store, the view is at most ``staleness`` old: the heartbeat refreshes it while
the breaker is used, and a caller that finds it too old asks the store first. If only this process uses the
store, the view is exact: every change goes through it, so it becomes invalid only with time. During an outage
nothing is decided from the view: every call asks this worker's own circuit, which starts as a copy of the
shared one.
"""

from __future__ import annotations

from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta import fork_safety
from comporta.breaker.admission import Admission
from comporta.breaker.cached_state import CachedState
from comporta.breaker.config import BreakerConfig
from comporta.breaker.counters import CallCounters
from comporta.breaker.operation import BreakerOperation
from comporta.breaker.operation_builder import OperationBuilder
from comporta.breaker.poller import CircuitPoller
from comporta.breaker.reply_times import NEVER_NS
from comporta.breaker.state import FORCED_CLOSED, CircuitReply
from comporta.breaker.store_clock import SameClock, StoreClock
from comporta.breaker.transitions import publish
from comporta.breaker.worker_circuit import WorkerCircuit
from comporta.stores.base import Store
from comporta.stores.name_claims import may_replace


class LocalView:
    """This process's view of one circuit on a store that other processes share.

    ``ignores_successes`` is true if no rule uses the window: only the time of a success then matters to a
    closed circuit. ``own`` is the worker's own circuit, if it has one.
    """

    is_exact = False
    own: WorkerCircuit | None

    def __init__(self, store: Store, name: str, config: BreakerConfig) -> None:
        rules = config._rules
        self.store = store
        self.name = name
        self.config = config
        self.now_ns = store.clock.now_ns
        self.ignores_successes = not rules.uses_window
        staleness_ns = NEVER_NS if self.is_exact else round(config.staleness * 1e9)
        shares_admission = config.slow_seconds is None
        clock = SameClock() if store.decides_in_process else StoreClock()
        self.own = None
        if config.local_threshold is not None:
            self.own = WorkerCircuit(name, rules, config.local_threshold, self.now_ns)
        self.state = CachedState(
            rules, self.now_ns, staleness_ns, clock, own=self.own, shares_admission=shares_admission
        )
        self.counters = CallCounters(config, self.now_ns, in_process=store.decides_in_process)
        self.builder = OperationBuilder(store, name, config, self.state, self.counters)
        self.poller = CircuitPoller(store, name, self.state, self.counters, self.builder)
        fork_safety.register(self)
        store.subscribe(self.poller)

    def current_reply(self) -> CircuitReply | None:
        """Return the cached reply if it is recent; ``None`` if the store should be read.

        A store on this machine is always read, because that is cheap and exact.
        """
        self.poller.was_used = True
        return None if self.store.decides_in_process else self.state.valid_reply()

    def admit_now(self) -> Admission | None:
        """Decide about a call from the cached state; ``None`` if the store must decide."""
        admission = self._own_refusal()
        if admission is None:
            admission = self.state.admit_now()
        if admission is not None:
            self.poller.was_used = True
        return admission

    def _own_refusal(self) -> Admission | None:
        own, reply = self.own, self.state.reply
        if own is None or own.is_closed or (reply is not None and reply.forced == FORCED_CLOSED):
            return None
        return own.refusal()

    def succeed_now(self, admission: Admission) -> bool:
        """Record a success in this process; false if it must be reported to the store."""
        state, counters = self.state, self.counters
        is_shared = admission is state.shared_admission
        if not is_shared:
            if self.own is not None:
                self.own.succeed(admission)
                state.follow_own_circuit()
            if admission.probe:
                return False
            if state.is_outdated(admission):
                return True
            counters.count_if_slow(admission)
        if not self.is_exact:
            self.poller.was_used = True
            counters.succeeded_ns = self.now_ns()
        is_recent = self.ignores_successes or counters.count_success()
        return is_recent and (is_shared or not (counters.slow or state.has_failures()))

    def apply(self, operation: BreakerOperation) -> CircuitReply:
        """Apply an operation for a caller of the breaker, blocking, and store the reply."""
        return self.apply_once(operation, self.poller.mark_used())

    async def apply_async(self, operation: BreakerOperation) -> CircuitReply:
        """Apply an operation for a caller of the breaker without blocking, and store the reply."""
        return await self.apply_once_async(operation, self.poller.mark_used())

    def apply_once(self, operation: BreakerOperation, sent_ns: int) -> CircuitReply:
        """Apply an operation that does not count as use of the breaker, such as one for a health page."""
        reply = self.store.apply(operation)
        publish(self.name, reply, self.state.update(reply, sent_ns))
        return reply

    async def apply_once_async(self, operation: BreakerOperation, sent_ns: int) -> CircuitReply:
        """Do what ``apply_once`` does without blocking the event loop."""
        reply = await self.store.apply_async(operation)
        publish(self.name, reply, self.state.update(reply, sent_ns))
        return reply

    def after_fork(self) -> None:
        """Reset the locks that a thread of the parent may have held, and leave the counts to the parent."""
        fork_safety.reinit_lock(self.state.lock)
        self.counters.discard()
        if self.own is not None:
            self.own.after_fork()


class ExactView(LocalView):
    """The view of a circuit on a store that only this process uses: always exact, and never polled.

    The time of the last success is not needed: a success after a failure is applied to the circuit itself.
    """

    is_exact = True

    def current_reply(self) -> CircuitReply | None:
        """Return the cached reply while nothing but a call can change it."""
        return None if self.state.shared_admission is None else self.state.valid_reply()

    def apply(self, operation: BreakerOperation) -> CircuitReply:
        """Apply an operation, and store the reply."""
        return self.apply_once(operation, 0)

    async def apply_async(self, operation: BreakerOperation) -> CircuitReply:
        """Apply an operation, which takes microseconds, and store the reply."""
        return self.apply_once(operation, 0)

    def apply_once(self, operation: BreakerOperation, sent_ns: int) -> CircuitReply:
        """Apply an operation, and store the reply."""
        with self.state.lock:  # replies are stored in the order in which the store made them
            reply = self.store.apply(operation)
            noticed = self.state.update_locked(reply, 0)
        publish(self.name, reply, noticed)
        return reply

    async def apply_once_async(self, operation: BreakerOperation, sent_ns: int) -> CircuitReply:
        """Do what ``apply_once`` does; awaits nothing, because it takes microseconds."""
        return self.apply_once(operation, sent_ns)


_views: WeakKeyDictionary[Store, WeakValueDictionary[str, LocalView]] = WeakKeyDictionary()
_views_lock = Lock()

fork_safety.reinit_lock_after_fork(_views_lock)


def local_view(store: Store, name: str, config: BreakerConfig) -> LocalView:
    """Return this process's view of a circuit; one name on one store has one configuration."""
    with _views_lock:
        views = _views.setdefault(store, WeakValueDictionary())
        view = views.get(name)
        if view is not None and view.config != config and may_replace(partial(views.__setitem__, name, view)):
            view = None
        if view is None:
            make = LocalView if store.shared else ExactView
            view = views[name] = make(store, name, config)
    if view.config != config:
        raise ValueError(
            f"name {name!r} is in use on this store for a breaker with {view.config}, got {config}: "
            "choose another name, or use the same configuration"
        )
    return view
