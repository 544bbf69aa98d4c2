"""Flows that override, pause and resume a limit, and what this process knows about a pause.

``limits/flows.py`` has the flows that take from a limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from comporta.clock import to_us
from comporta.flow import Flow
from comporta.jitter import uniform
from comporta.limits.config import LimitConfig
from comporta.limits.overrides.notifications import publish_limit_event
from comporta.limits.overrides.operation import (
    OverrideReply,
    PauseLimit,
    ResumeLimit,
    RevokeOverride,
    SetLimit,
)
from comporta.limits.overrides.record import PAUSE_US_MAX, ExpiringStrategy
from comporta.limits.wait_queue import PAUSE_JITTER_US_MAX
from comporta.stores.base import Operation
from comporta.stores.effects import Apply
from comporta.validators import require_number

if TYPE_CHECKING:
    from comporta.limits.flows import LimitFlows

PAUSE_MAX = PAUSE_US_MAX // 1_000_000


class OverrideFlows:
    """The flows that change the override record of one limit on one store."""

    __slots__ = ("_flows", "_remote")

    def __init__(self, flows: LimitFlows) -> None:
        self._flows = flows
        self._remote = flows.bound.remote

    def set_limit_flow(self, limit: LimitConfig | str | None) -> Flow[None]:
        """Override the limit for every worker; ``None`` revokes the override."""
        yield from self.change_flow(self._set_limit_operation(limit))
        if self._flows.lease_client is not None:
            self._flows.lease_client.forget_all_refusals()

    def pause_flow(self, seconds: float) -> Flow[None]:
        """Refuse every request for some time, for every worker; 0 ends a pause."""
        require_number("seconds", seconds, 0, PAUSE_MAX)
        if not seconds:
            yield from self.resume_flow()
            return
        name, params = self._flows.name, self._flows.params
        reply = yield from self.change_flow(PauseLimit(name, params, to_us(seconds)))
        if reply.changed:
            publish_limit_event("paused", name, f"paused for {seconds:g} s")
            if self._flows.lease_client is not None:
                yield from self._flows.lease_client.recall_flow()

    def resume_flow(self) -> Flow[None]:
        """End a pause."""
        name, params = self._flows.name, self._flows.params
        reply = yield from self.change_flow(ResumeLimit(name, params))
        if reply.changed:
            publish_limit_event("resumed", name, "resumed before its pause was over", "info")
        if self._flows.lease_client is not None:
            self._flows.lease_client.forget_all_refusals()
        self._flows.wait_queue.wake_all_first()

    def change_flow(self, operation: Operation[OverrideReply]) -> Flow[OverrideReply]:
        """Change the override record, and apply it in this process immediately."""
        reply: OverrideReply = yield Apply(self._flows.store, operation)
        if self._remote is not None:
            self._remote.apply_override(reply.record)
        else:
            yield self._flows.read_strategy
        return reply

    @property
    def misses_remote_changes(self) -> bool:
        """Whether this process learns about other workers' overrides only by reading the record itself."""
        return self._remote is not None and not self._flows.store.has_heartbeat

    def pause_left_us(self) -> int:
        """Return how long the limit is paused, as far as this process knows without a round trip."""
        now_us, strategy = self._flows.store.clock.now_ns() // 1000, self._flows.current_strategy()
        if not isinstance(strategy, ExpiringStrategy):
            return 0
        if self._remote is not None:
            left_us: int = self._remote.pause_left_us(now_us)
            return left_us
        return strategy.effective_at(now_us)[1]

    def pause_jitter_us(self) -> int:
        """Return a random delay after a pause, so that waiting callers do not all retry at once."""
        strategy = self._flows.current_strategy()
        if not (isinstance(strategy, ExpiringStrategy) and self.pause_left_us()):
            return 0
        return round(uniform(0, min(strategy.record.pause_length_us // 10, PAUSE_JITTER_US_MAX)))

    def _set_limit_operation(self, limit: LimitConfig | str | None) -> Operation[OverrideReply]:
        name, params, config = self._flows.name, self._flows.params, self._flows.config
        if limit is None:
            return RevokeOverride(name, params)
        _check_strategy(name, config, limit)
        wanted = replace(LimitConfig.coerce(limit, config.strategy), lease=config.lease)
        return SetLimit(name, wanted.build_strategy().params, str(wanted))


def _check_strategy(name: str, config: LimitConfig, limit: LimitConfig | str) -> None:
    if isinstance(limit, LimitConfig) and limit.strategy != config.strategy:
        raise ValueError(
            f"strategy of a running limit cannot change: {name!r} counts by "
            f"{config.strategy_name}, got {limit.strategy_name}. Pass text such as '10/s', or "
            "create a limiter with another name"
        )
