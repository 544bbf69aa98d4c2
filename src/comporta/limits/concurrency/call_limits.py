"""A permit and a token for each call, taken together: both or neither, in one operation, without waiting.

A refused caller waits for a permit and then for a token like any other caller (``limit.py`` and
``limits/flows.py``); nothing here waits.
"""

from __future__ import annotations

from comporta.flow import Flow
from comporta.limits.bound_limits import AcquireEffect
from comporta.limits.claims import ClaimAttempt
from comporta.limits.concurrency.call import AcquireForCall, CallReply
from comporta.limits.concurrency.held_back import Acquisition, ReusablePermit
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.limits.concurrency.permits import Permit
from comporta.limits.flows import LimitFlows
from comporta.limits.key import normalize_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.priority import NORMAL
from comporta.limits.scripts import call_script
from comporta.threads import run_cleanup


class CallLimits:
    """A concurrency limit and a limit on one store, for calls that need a permit and a token."""

    __slots__ = ("_flows", "_permits", "_returns", "_script", "take_held_back")

    def __init__(self, permits: ConcurrencyLimit, limiter: BaseLimiter) -> None:
        self._permits = permits
        self._returns = permits._returns
        self._flows: LimitFlows = limiter._flows
        flows = self._flows
        self._script = call_script(flows.config.strategy_name, flows.name, tuple(flows.params))
        self.take_held_back = self._returns.take

    @property
    def has_waiters(self) -> bool:
        """Whether callers of this process already wait for a permit or a token: they go first."""
        return bool(self._permits._wait_queue.waiters_by_key or self._flows.wait_queue.waiters_by_key)

    @property
    def _takes_token_alone(self) -> bool:
        return self._flows.lease_client is not None or self._flows.shadow is not None

    def hold_back(self, permit: Permit) -> bool:
        """Hold back the permit of an ended call; false if it must be released now."""
        return not self._permits._wait_queue.waiters_by_key and self._returns.hold_back(permit)

    def put_back(self, permit: ReusablePermit) -> None:
        """Hold back again a permit that was taken and not used."""
        self._returns.put_back(permit)

    def acquire_flow(self, rank: int = NORMAL) -> Flow[Permit | None]:
        """Take a permit and a token; ``None`` if either is refused or others wait.

        ``rank`` is the rank of the caller's class, which leaves no headroom.
        """
        if self.has_waiters:
            return None
        permit = self.take_held_back()
        if permit is not None:
            return (yield from self._with_token_flow(permit))
        granted = yield from self._acquire_both_flow(rank)
        if granted is None or not self._takes_token_alone:
            return granted
        return (yield from self._with_token_flow(granted))

    def _acquire_both_flow(self, rank: int) -> Flow[Permit | None]:
        """Take both in one operation; for a limit with a lease or in shadow mode, only the permit."""
        store = self._permits.store
        acquisition, granted_ns, granted = Acquisition(), store.clock.now_ns(), False
        amount = 0 if self._takes_token_alone else 1
        attempt = ClaimAttempt(0, rank) if amount and store.shared else None
        demand = yield from self._flows.demand_flow(normalize_key(None), amount, attempt=attempt)
        try:
            reply: CallReply = yield from self._returns.attempt_flow(
                acquisition,
                lambda ended: AcquireForCall(
                    self._script, demand, self._permits._pool, acquisition.permit, *ended
                ),
            )
            granted = reply.granted
        finally:
            run_cleanup(self._returns.end_acquisition, acquisition, granted_ns if granted else None)
        self._returns.others_wait = reply.others_wait > 0 and not reply.is_local
        if not granted:
            return None
        if reply.is_local or reply.others_wait:
            return acquisition.permit
        reusable = ReusablePermit(*acquisition.permit)
        reusable.granted_ns = granted_ns
        return reusable

    def _with_token_flow(self, permit: Permit) -> Flow[Permit | None]:
        """Take a token for a call that has a permit; release the permit if there is no token."""
        has_reply = False
        try:
            wait_us: int = yield AcquireEffect(self._flows.bound, None, 1)
            has_reply = True
        finally:
            if not has_reply:
                run_cleanup(self._returns.put_back, permit)
        if wait_us:
            yield from self._permits._end_call_flow(permit)
            return None
        return permit
