"""Keeps the cached state of a circuit fresh while the breaker is in use.

If the store keeps a change log, the circuit is read again only after a change, and every 5 s (or after
``staleness``, if that is longer) in case someone changed a key by hand. Otherwise it is read at every poll.
The heartbeat calls the poller from its own thread. The poller does not decide about calls.
"""

from __future__ import annotations

from typing import Any

from comporta.breaker.cached_state import CachedState
from comporta.breaker.counters import REFRESH_MARGIN_NS, CallCounters
from comporta.breaker.operation import BreakerOperation, circuit_name
from comporta.breaker.operation_builder import OperationBuilder
from comporta.breaker.state import READ
from comporta.breaker.transitions import publish
from comporta.stores.base import Store
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber

IDLE_AFTER_NS = 10_000_000_000
"""The poller stops refreshing this long after the breaker was last used."""


class CircuitPoller(HeartbeatSubscriber):
    """The heartbeat's subscriber for one circuit. Callers set ``was_used`` when they use the breaker."""

    __slots__ = (
        *("__weakref__", "_builder", "_counters", "_is_confirmed", "_last_used_ns", "_name", "_now_ns"),
        *("_sent_ns", "_state", "_store", "change_name", "was_used"),
    )

    change_name: str

    def __init__(
        self, store: Store, name: str, state: CachedState, counters: CallCounters, builder: OperationBuilder
    ) -> None:
        self.was_used = False
        self.change_name = circuit_name(name)
        self._is_confirmed = False
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

    @property
    def follows_closely(self) -> bool:
        """Whether the breaker was used recently, so that its cached state must stay fresh."""
        return self.was_used or not self._is_idle(self._now_ns())

    def on_changed(self, version_us: int) -> None:
        """Read the circuit again, unless the last reply is more recent than the change."""
        self._state.mark_changed(version_us)

    def on_confirmed(self, asked_ns: int) -> None:
        """Extend the validity of the cached state if it includes the last change."""
        self._is_confirmed = self._state.confirm(asked_ns)

    def heartbeat_operation(self) -> BreakerOperation | None:
        """Return a read of the circuit if the breaker was used recently, has counts to report, or is forced.

        A forced circuit is always followed: the operator's record ends when it is revoked, not by time, and
        an outage must start from the latest record.
        """
        now_ns = self._now_ns()
        used, self.was_used = self.was_used, False
        if used:
            self._last_used_ns = now_ns
        confirmed, self._is_confirmed = self._is_confirmed, False
        reply = self._state.reply
        reports = self._counters.is_report_due(now_ns) if confirmed else bool(self._counters.calls)
        forced = reply is not None and reply.forced
        if not reports and ((self._is_idle(now_ns) and not forced) or self._is_fresh(now_ns, confirmed)):
            return None
        self._sent_ns = now_ns
        return self._builder.build(READ)

    def _is_idle(self, now_ns: int) -> bool:
        return now_ns - self._last_used_ns > IDLE_AFTER_NS

    def _is_fresh(self, now_ns: int, confirmed: bool) -> bool:
        """Whether the cached state needs no read now; ``confirmed``: the change log has no later change."""
        return self._state.valid_until_ns - now_ns > (0 if confirmed else REFRESH_MARGIN_NS)

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
