"""Deciding one limit, or several at once, as an operation that any store can apply.

Several limits in one operation are charged together or not at all: each must grant its amount. A caller that
waits for several limits leaves a claim on each of them (``claims.py``).

Lua version: ``limit.lua``, below the Lua text of the strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from comporta.limits.claims import (
    CLAIMS,
    NO_ATTEMPT,
    ClaimAttempt,
    LimitClaims,
    changed_claims,
    claims_after,
    live_claims,
    take_in_order,
    units_ahead,
)
from comporta.limits.priority import NO_HEADROOM, Headroom
from comporta.limits.reply import REPLY_SIZE, LimitReply, build_reply, parse_reply
from comporta.limits.scripts import CLAIM_SPACE, LIMIT_SPACE, OVERRIDE_SPACE, group_script, limit_script
from comporta.limits.strategies.base import Strategy
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.outage_info import Outage


class LimitDemand(NamedTuple):
    """What an operation requests of one limit: an ``amount`` above 0 takes, 0 peeks, below 0 releases.

    ``fallback`` says how a worker decides while the shared store is unreachable (``outage_share.py``).
    ``current_strategy`` returns the strategy in effect then, under the last override that this process saw.
    ``headroom`` is what the caller's class leaves to higher classes. ``attempt`` is the caller's place among
    the claims of waiters; ``None`` ignores claims. A refusal of a limit in ``shadow`` mode does not keep the
    others from granting.
    """

    strategy: Strategy
    name: str
    key: str
    amount: int
    fallback: str = "share"
    current_strategy: Callable[[], Strategy] | None = None
    headroom: Headroom = NO_HEADROOM
    closed_after_us: int = 0
    attempt: ClaimAttempt | None = None
    shadow: bool = False

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it if they count."""
        limit = StateKey(f"{LIMIT_SPACE}:{self.name}", self.key, self.strategy)
        if self.attempt is None:
            return [limit]
        return [limit, StateKey(f"{CLAIM_SPACE}:{self.name}", self.key, CLAIMS)]

    @property
    def state_text(self) -> str:
        """The state of the key on a server, which also holds the claims."""
        return key_text(f"{LIMIT_SPACE}:{self.name}", self.key)

    @property
    def released(self) -> LimitDemand:
        """The demand that releases the amount."""
        return self._replace(amount=-self.amount, attempt=None)

    def split_states(self, states: Sequence[State | None]) -> tuple[State | None, LimitClaims | None]:
        """Return the state of the key, and the claims on it, from the states of ``state_keys``."""
        return (states[0], None) if self.attempt is None else (states[0], states[1])

    def kept_units(self, claims: LimitClaims | None, now_us: int) -> int:
        """Return the units that others claimed before this caller."""
        if self.attempt is None or not claims:
            return 0
        return units_ahead(live_claims(claims, now_us), self.attempt, now_us)

    def take(
        self, state: State | None, claims: LimitClaims | None, now_us: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take the amount, leaving untouched the headroom and what others claimed before."""
        floor = self.headroom.floor(self.strategy, state, now_us, self.amount)
        return take_in_order(
            self.strategy,
            state,
            now_us,
            self.amount,
            floor=floor,
            ahead=self.kept_units(claims, now_us),
            max_wait_us=max_wait_us,
        )

    def claims_after(self, claims: LimitClaims | None, now_us: int, wait_us: int) -> State | None:
        """Return the claims after an attempt that has to wait for ``wait_us``; ``None`` if unchanged."""
        if self.attempt is None or self.amount <= 0:
            return None
        live = live_claims(claims or (), now_us)
        return changed_claims(claims, claims_after(live, self.attempt, now_us, self.amount, wait_us))


class LimitOperation(Operation[list[LimitReply]]):
    """Take from some limits, peek at them or release to them: all of them or none."""

    __slots__ = ("demands", "max_wait_us")

    def __init__(self, demands: Sequence[LimitDemand], max_wait_us: int = 0) -> None:
        self.demands = demands
        self.max_wait_us = max_wait_us

    @property
    def script(self) -> Script:
        """The script with the strategies of these limits."""
        if len(self.demands) == 1:
            return limit_script(self.demands[0].strategy.name)
        return group_script(frozenset(demand.strategy.name for demand in self.demands))

    @property
    def reply_size(self) -> int:
        """The fields of one reply for each limit."""
        return REPLY_SIZE * len(self.demands)

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of each limit, followed by the claims on it if they count."""
        return [key for demand in self.demands for key in demand.state_keys]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[list[State | None], list[LimitReply]]:
        """Decide all limits, then charge all or none."""
        known = self._split_states(states)
        steps = [
            self._step_one(demand, state, claims, now_us)
            for demand, (state, claims) in zip(self.demands, known, strict=True)
        ]
        longest_us = self.binding_wait_us([wait_us for _, wait_us in steps])
        all_grant = longest_us <= self.max_wait_us
        new_states: list[State | None] = []
        replies = []
        for demand, (state, claims), (new, wait_us) in zip(self.demands, known, steps, strict=True):
            grants = wait_us <= self.max_wait_us
            kept = new if all_grant or not grants else None  # a refusal only brings it up to date
            new_states.append(kept)
            if demand.attempt is not None:
                new_states.append(demand.claims_after(claims, now_us, longest_us))
            retry_us = 0 if grants else wait_us
            replies.append(
                build_reply(
                    demand.strategy, kept or state, now_us, wait_us, retry_us, is_peek=not demand.amount
                )
            )
        return new_states, replies

    def binding_wait_us(self, waits_us: Sequence[int]) -> int:
        """Return the longest wait of all limits, ignoring limits in shadow mode."""
        waits = zip(self.demands, waits_us, strict=True)
        return max((wait_us for demand, wait_us in waits if not demand.shadow), default=0)

    def _split_states(self, states: Sequence[State | None]) -> list[tuple[State | None, LimitClaims | None]]:
        """Return the state of each limit and the claims on it."""
        known, at = [], 0
        for demand in self.demands:
            known.append(demand.split_states(states[at : at + 2]))
            at += len(demand.state_keys)
        return known

    def _step_one(
        self, demand: LimitDemand, state: State | None, claims: LimitClaims | None, now_us: int
    ) -> tuple[State | None, int]:
        strategy, amount = demand.strategy, demand.amount
        if amount > 0:
            return demand.take(state, claims, now_us, self.max_wait_us)
        if amount < 0 and state is not None:
            return strategy.release(state, now_us, -amount), 0
        return None, 0 if amount else strategy.effective_at(now_us)[1]

    def script_keys(self) -> list[str]:
        """Return two keys for each limit: its state and its override record."""
        keys: list[str] = []
        for demand in self.demands:
            keys += (demand.state_text, f"{OVERRIDE_SPACE}:{demand.name}")
        return keys

    def script_args(self) -> list[int | str | bytes]:
        """Return one group: the number of limits, the attempt, then nine arguments for each limit."""
        args: list[int | str | bytes] = [len(self.demands), *(self.demands[0].attempt or NO_ATTEMPT)]
        for demand in self.demands:
            strategy = demand.strategy
            args += (strategy.name, demand.amount, self.max_wait_us, *strategy.params)
            args += (demand.headroom.units, int(demand.shadow))
        return args

    def undo(self, reply: Sequence[LimitReply]) -> LimitOperation | None:
        """Return the operation that releases the amounts of a cancelled caller; a queue turn stays spent."""
        waits_us = [limit_reply.wait_us for limit_reply in reply]
        taken = [
            demand
            for demand, wait_us in zip(self.demands, waits_us, strict=True)
            if demand.amount > 0 and not wait_us
        ]
        if self.max_wait_us or self.binding_wait_us(waits_us) or not taken:
            return None
        return LimitOperation([demand.released for demand in taken])

    def fallback(self, outage: Outage) -> LimitOperation:
        """Return the same operation on this worker's share of each limit."""
        return LimitOperation([on_local_share(demand, outage) for demand in self.demands], self.max_wait_us)

    def parse(self, raw: Sequence[Any]) -> list[LimitReply]:
        """Parse the replies, or raise the error that the script returned for one of the keys."""
        if len(raw) == REPLY_SIZE and isinstance(raw[0], int):
            return [LimitReply._make(raw)]
        starts = range(0, len(raw), REPLY_SIZE)
        return [
            parse_reply(demand.name, demand.key, raw[start : start + REPLY_SIZE])
            for demand, start in zip(self.demands, starts, strict=True)
        ]


def on_local_share(demand: LimitDemand, outage: Outage) -> LimitDemand:
    """Return the same demand on this worker's share of the limit."""
    strategy = demand.current_strategy() if demand.current_strategy else demand.strategy
    share = fallback_strategy(strategy, demand.name, demand.fallback, outage, demand.closed_after_us)
    return demand._replace(strategy=share, attempt=None)
