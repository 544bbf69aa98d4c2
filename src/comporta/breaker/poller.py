"""Keeps the cached state of a circuit fresh for as long as the breaker is used.

The heartbeat calls it from its own thread. It does not decide about calls.
"""

from __future__ import annotations

from typing import Any

from comporta.breaker.cached_state import CachedState
from comporta.breaker.counters import REFRESH_MARGIN_NS, CallCounters
from comporta.breaker.operation import BreakerOperation
from comporta.breaker.operation_builder import OperationBuilder
from comporta.breaker.state import READ
from comporta.breaker.transitions import publish
from comporta.stores.base import HeartbeatSubscriber, Store

IDLE_AFTER_NS = 10_000_000_000
"""The poller stops refreshing this long after the breaker was last used."""


class CircuitPoller(HeartbeatSubscriber):
    """The heartbeat's subscriber for one circuit. Callers set ``was_used`` when they use the breaker."""

    __slots__ = (
        *("__weakref__", "_builder", "_counters", "_last_used_ns", "_name", "_now_ns", "_sent_ns"),
        *("_state", "_store", "was_used"),
    )

    def __init__(
        self, store: Store, name: str, state: CachedState, counters: CallCounters, builder: OperationBuilder
    ) -> None:
        self.was_used = False
        self._store = store
        self._name = name
        self._now_ns = store.clock.now_ns
        self._state = state
        self._counters = counters
        self._builder = builder
        self._last_used_ns = -IDLE_AFTER_NS
        self._sent_ns = 0

    def mark_used(self) -> int:
        """Return the current time; a breaker that was idle is polled again from now on."""
        now_ns = self._now_ns()
        was_idle = now_ns - self._last_used_ns > IDLE_AFTER_NS
        self.was_used = True
        if was_idle and self._store.has_heartbeat:
            self._last_used_ns = now_ns
            self._store.poll_soon()
        return now_ns

    def heartbeat_operation(self) -> BreakerOperation | None:
        """Return a read of the circuit if the breaker was used recently, has counts to report, or is forced.

        A forced circuit is always polled: the operator's record ends when it is revoked, not by time, and an
        outage must start from the latest record.
        """
        now_ns = self._now_ns()
        used, self.was_used = self.was_used, False
        if used:
            self._last_used_ns = now_ns
        counted, reply = self._counters.calls, self._state.reply
        forced = reply is not None and reply.forced
        if now_ns - self._last_used_ns > IDLE_AFTER_NS and not counted and not forced:
            return None
        if self._state.valid_until_ns - now_ns > REFRESH_MARGIN_NS and not counted:
            return None
        self._sent_ns = now_ns
        return self._builder.build(READ)

    def on_heartbeat_reply(self, reply: Any) -> None:
        """Store the reply to the read."""
        publish(self._name, reply, self._state.update(reply, self._sent_ns))

    def recovery_operation(self) -> BreakerOperation | None:
        """Return a read of this worker's own circuit if the shared one was open when last seen.

        The read creates the local circuit, which is reported when the store recovers, even if this worker
        made no call during the outage.
        """
        reply = self._state.reply
        if reply is None or not self._state.is_open():
            return None
        return self._builder.build_local_read(reply.generation)
