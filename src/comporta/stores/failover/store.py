"""A shared engine with failover: while it is unreachable, this worker decides from its share of every limit.

A :class:`FailoverStore` stands in front of a shared engine. While the engine answers, it adds nothing. When
the engine fails, the first caller waits until its deadline; later operations are applied in this worker's
memory (``local_share.py``), in their fallback form: a limit is divided by the number of workers. The
heartbeat (``heartbeat.py``) probes the engine; when it is reachable again the worker reports what it granted
and the fleet rejoins. Each switch is an event, a log line and a metric.

A call that may have taken effect is never sent again: it counts as spent, and the local share replies.

Some errors concern one key only: its value is of another type, the table is full, this user may not use it,
or a cluster is moving it. Only that key is decided from the local share, and its value is not changed. If a
server denies this worker at the start, callers get the error; later it is an outage like others, except that
``fallback="open"`` grants nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, TypeVar

from comporta import events, fork_safety
from comporta.clock import Clock
from comporta.errors import (
    StateAuthError,
    StateError,
    StateFullError,
    StateMovingError,
    StatePermissionError,
    StateTypeError,
)
from comporta.flow import running_loop
from comporta.metrics import count
from comporta.runtime import RUNTIME
from comporta.stores.base import Operation, OverrideListener, Store
from comporta.stores.bound_limit import Binding
from comporta.stores.effects import ApplyMany
from comporta.stores.failover.bound_limit import FailoverBoundLimit
from comporta.stores.failover.control import ENGINE_ERRORS, as_state_error
from comporta.stores.failover.heartbeat import Heartbeat
from comporta.stores.failover.local_share import LocalShare
from comporta.stores.failover.log_reads import LogRead
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.outage_info import Fallback, Outage

R = TypeVar("R")

REPORTED_KEYS_MAX = 1000
"""How many unusable keys are named in events; further ones are only counted."""


class FailoverStore(Store):
    """A shared engine, and this worker's share of its limits while it is unreachable.

    ``open_primary`` opens the engine on first use. ``engine`` describes what the engine can do before it is
    open. ``is_healthy`` is for the hot path: the engine is open, the heartbeat runs, and there is no outage.
    """

    has_heartbeat = True

    def __init__(
        self,
        open_primary: Callable[[], Store],
        address: str,
        clock: Clock,
        engine: Store | type[Store] = Store,
    ) -> None:
        self.address = address
        self.clock = clock
        self.decides_in_process = engine.decides_in_process
        self.state_bytes_max = engine.state_bytes_max
        self.is_healthy = False
        self.was_reached = False
        self.local_share: LocalShare | None = None
        self._open_primary = open_primary
        self._primary: Store | None = None
        self._unusable_keys_share: LocalShare | None = None
        self._reported_keys: set[str] = set()
        self._lock = Lock()
        self.heartbeat = Heartbeat(self)
        fork_safety.register(self)

    @classmethod
    def wrap(cls, store: Store, address: str) -> FailoverStore:
        """Give failover to an engine that is already open."""
        return cls(lambda: store, address, store.clock, store)

    @property
    def worker_count(self) -> int:
        """How many workers share this state, as far as this worker knows."""
        return self.heartbeat.worker_count.value

    @property
    def fallback(self) -> Fallback | None:
        """Why this worker decides from its local share; ``None`` while the engine is reachable."""
        share = self.local_share
        if share is None:
            return None
        return Fallback(share.outage.since, share.outage.reason, share.outage.worker_count)

    @property
    def primary(self) -> Store:
        """The shared engine, opened on first use."""
        primary = self._primary
        if primary is None:
            with self._lock:
                primary = self._primary = self._primary or self._open_primary()
        return primary

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation on the engine or, during an outage, on the local share."""
        if not self.is_healthy:
            self._ensure_heartbeat()
        share = self.local_share
        if share is None:
            try:
                if self.heartbeat.log_reads.is_wanted:
                    reply = self._apply_with_log_read(operation)
                else:
                    reply = self.primary.apply(operation)
            except ENGINE_ERRORS as error:
                share = self.fail_over(error)
            else:
                self.was_reached = True
                return reply
        count("state_fallback_decisions", state=self.address)
        return share.apply(operation)

    async def apply_async(self, operation: Operation[R]) -> R:
        """Do what ``apply`` does without blocking the event loop."""
        if not self.is_healthy:
            self._ensure_heartbeat()
        share = self.local_share
        if share is None:
            try:
                if self.heartbeat.log_reads.is_wanted:
                    reply = await self._apply_with_log_read_async(operation)
                else:
                    reply = await self.primary.apply_async(operation)
            except ENGINE_ERRORS as error:
                share = self.fail_over(error)
            else:
                self.was_reached = True
                return reply
        count("state_fallback_decisions", state=self.address)
        return share.apply(operation)

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out several operations on the engine; return the reply to each, or the error of its key.

        Use it for operations that make sense only where all workers see them: during an outage it raises an
        error.
        """
        if not self.is_healthy:
            self._ensure_heartbeat()
        try:
            replies = self._reachable_primary().apply_many(operations)
        except ENGINE_ERRORS as error:
            self.fail_over(error)
            if isinstance(error, StateError):
                raise
            raise as_state_error(error, self.address) from error
        self.was_reached = True
        return replies

    def bind(self, binding: Binding) -> FailoverBoundLimit | None:
        """Tie a limit to the engine if it decides in this process, with the local share as its fallback."""
        return FailoverBoundLimit(self, binding) if self.decides_in_process else None

    def subscribe(self, subscriber: HeartbeatSubscriber) -> None:
        """Poll for a subscriber for as long as it is referenced elsewhere."""
        self.heartbeat.subscribe(subscriber)

    def follow(self, space: str, key: str, listener: OverrideListener) -> None:
        """Pass a record to ``listener`` about once a second."""
        self.heartbeat.follow_override(space, key, listener)

    def start_heartbeat(self) -> bool:
        """Start the heartbeat if it is not running; false if no thread can be started."""
        return self.heartbeat.start()

    def poll_soon(self) -> None:
        """Poll for the subscribers now."""
        self.heartbeat.poll_soon()

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space; raises during an outage, because only the engine has them."""
        try:
            return self._reachable_primary().entries(space)
        except OSError as error:
            raise as_state_error(error, self.address) from error

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without blocking the event loop."""
        try:
            return await self._reachable_primary().entries_async(space)
        except OSError as error:
            raise as_state_error(error, self.address) from error

    def fail_over(self, error: StateError | OSError, *, store_wide: bool = False) -> LocalShare:
        """Handle an error of the engine and return the local share that answers instead.

        Raises the error if the engine denies this worker before it ever answered. ``store_wide`` is true if a
        missing permission concerns all keys, not just one.
        """
        error.__traceback__ = None  # it would keep the caller's objects in memory during the whole outage
        error = as_state_error(error, self.address)
        if isinstance(error, StateTypeError | StateFullError | StateMovingError):
            return self._fail_over_key(error)
        if isinstance(error, StateAuthError) and not self.was_reached:
            raise error
        if isinstance(error, StatePermissionError) and not store_wide:
            return self._fail_over_key(error)
        with self._lock:
            self.is_healthy = False
            if self.local_share is not None:
                return self.local_share
            share = self.local_share = self._new_local_share(error, self._workers_in_fallback())
        self.heartbeat.notify_outage()
        part = f"1/{share.outage.worker_count} of each limit"
        severity = "error" if share.outage.denied else "warning"
        count("state_switches", state=self.address, to="fallback")
        self._publish("state_fallback", f"in fallback ({part} for this worker): {error}", severity)
        return share

    def record_denial(self, error: StateError) -> None:
        """Handle a server that denies this worker during an outage.

        The share is replaced by an empty one in which ``fallback="open"`` grants nothing extra. If the server
        never answered before, the share raises the error from now on: the configuration is wrong, and the
        first caller only gave up before the server could say so.
        """
        with self._lock:
            previous = self.local_share
            if previous is not None and not previous.outage.denied:
                share = self._new_local_share(error, max(self.worker_count, previous.outage.worker_count))
                share.outage = share.outage._replace(since=previous.outage.since)
                self.heartbeat.recovery.collect_reports(previous)
                share.rejects_all = not self.was_reached
                self.local_share = share

    def recover(self) -> None:
        """End the outage: the engine is in use again."""
        with self._lock:
            share, self.local_share = self.local_share, None
            self.was_reached = self.is_healthy = True
            self.heartbeat.machine_workers.leave()
        if share is not None:
            seconds = max(0.0, RUNTIME.unix_time() - share.outage.since)
            count("state_switches", state=self.address, to="shared")
            self._publish("state_recovered", f"back to the shared state after {seconds:.1f} s", "info")

    def close(self) -> None:
        """Remove this worker from the registry and close the engine."""
        self.is_healthy = False
        self.heartbeat.stop()
        if self._primary is not None:
            self._primary.close()

    def close_connections(self) -> None:
        """Remove this worker from the registry and close the engine's connections of blocking callers."""
        self.is_healthy = False
        self.heartbeat.stop()
        if self._primary is not None:
            self._primary.close_connections()

    async def aclose(self) -> None:
        """Remove this worker from the registry and close all connections of the engine."""
        import asyncio  # noqa: PLC0415 - see clock.py

        running_loop()
        self.is_healthy = False
        await asyncio.to_thread(self.heartbeat.stop)
        if self._primary is not None:
            await self._primary.aclose()

    def after_fork(self) -> None:
        """Become a separate worker in a forked child, with a new share if there is an outage."""
        fork_safety.reinit_lock(self._lock)
        self.is_healthy = False
        self._unusable_keys_share = None  # the parent reports what it granted
        self.heartbeat.machine_workers.after_fork()
        share = self.local_share
        if share is not None:
            worker_count = max(share.outage.worker_count, self._workers_in_fallback())
            self.local_share = self._new_local_share(share.cause, worker_count)

    def _apply_with_log_read(self, operation: Operation[R]) -> R:
        """Apply an operation, and read the change log in the same round trip if that is due."""
        read = self.heartbeat.log_reads.take()
        if read is None:
            return self.primary.apply(operation)
        replies = self.primary.apply_many([operation, read.operation])
        reply: R = self._first_reply(read, replies)
        return reply

    async def _apply_with_log_read_async(self, operation: Operation[R]) -> R:
        read = self.heartbeat.log_reads.take()
        if read is None:
            return await self.primary.apply_async(operation)
        replies = await ApplyMany(self.primary, [operation, read.operation]).wait()
        reply: R = self._first_reply(read, replies)
        return reply

    def _first_reply(self, read: LogRead, replies: Sequence[Any]) -> Any:
        """Return or raise the reply to a caller's operation, after handling the reply to the log read."""
        reply, log_reply = replies
        self.heartbeat.log_reads.handle(read, log_reply)
        if isinstance(reply, StateError):
            raise reply
        return reply

    def _ensure_heartbeat(self) -> None:
        """Start the heartbeat on the first use in each process."""
        running = self.heartbeat.start()
        with self._lock:
            self.is_healthy = running and self.local_share is None and self._primary is not None

    def _reachable_primary(self) -> Store:
        share = self.local_share
        if share is not None:
            raise share.unavailable_error() from share.cause
        return self.primary

    def _workers_in_fallback(self) -> int:
        """List this worker among its machine's workers, and return by how many to divide a limit."""
        return max(self.worker_count, self.heartbeat.machine_workers.join())

    def _new_local_share(self, error: StateError, worker_count: int) -> LocalShare:
        denied = isinstance(error, StateAuthError)
        now_us = self.clock.now_ns() // 1000
        outage = Outage(RUNTIME.unix_time(), now_us, str(error), worker_count, denied)
        return LocalShare(outage, error, self.clock)

    def _fail_over_key(self, error: StateError) -> LocalShare:
        """Return the local share for a single unusable key; an event names each key once."""
        with self._lock:
            share = self._unusable_keys_share
            if share is None or share.outage.worker_count < self.worker_count:
                share = self._unusable_keys_share = self._new_local_share(error, self.worker_count)
            text = str(error)
            is_new = text not in self._reported_keys and len(self._reported_keys) < REPORTED_KEYS_MAX
            if is_new:
                self._reported_keys.add(text)
        if is_new:
            self._publish("state_key_unusable", f"{text}; this key uses the local share", "error")
        count("state_switches", state=self.address, to="key")
        return share

    def _publish(self, kind: str, text: str, severity: str) -> None:
        events.publish(kind, self.address, text, severity)
