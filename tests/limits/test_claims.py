"""Claims on a limit (F9): what one process's first waiter needs, the others of its class leave untouched."""

from __future__ import annotations

import pytest
from tests.support import command, redis_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, StateTypeError
from comporta.limits.claim_operation import BLOCKED_US_MIN, ClaimOperation
from comporta.limits.claims import CLAIM_TTL_US, CLAIMS, CLAIMS_MAX, ClaimAttempt, LimitClaim, live_claims
from comporta.limits.operation import LimitDemand
from comporta.limits.priority import Headroom
from comporta.limits.scripts import claim_script
from comporta.stores.base import Outage
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

SECOND_US = 1_000_000


class Rig:
    """A limit of 10/s with a burst of 10, and attempts of several processes at it."""

    def __init__(self, strategy: LimitStrategy = LimitStrategy.TOKEN_BUCKET) -> None:
        self.clock = ManualClock(1000)
        self.store = MemoryStore(self.clock)
        self.strategy = LimitConfig(10, 10, 1, strategy).build_strategy()
        self.script = claim_script(self.strategy.name, "n", tuple(self.strategy.params))

    def attempt(
        self, claimant: int, cost: int, *, rank: int = 1, waited_us: int = 0, left_us: int = 10**9
    ) -> int:
        demand = LimitDemand(self.strategy, "n", "k", cost)
        return self.store.apply(
            ClaimOperation(self.script, demand, ClaimAttempt(claimant, rank, waited_us, left_us))
        )


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    assert rig.attempt(9, 10) == 0
    return rig


def test_claim__large_cost__is_left_untouched_by_small_ones(rig: Rig) -> None:
    assert rig.attempt(1, 10) == SECOND_US
    rig.clock.advance(0.5)
    assert rig.attempt(2, 1) == 600_000  # after the 5 units that the first still needs, and its own
    rig.clock.advance(0.5)
    assert rig.attempt(2, 1, waited_us=500_000) == 100_000
    assert rig.attempt(1, 10, waited_us=SECOND_US) == 0
    rig.clock.advance(0.1)
    assert rig.attempt(2, 1) == 0


def test_claim__of_a_younger_waiter__is_ignored(rig: Rig) -> None:
    assert rig.attempt(1, 10) > 0
    rig.clock.advance(0.1)
    assert rig.attempt(2, 1, waited_us=SECOND_US) == 0


def test_claim__of_a_lower_class__is_ignored_by_higher_ones(rig: Rig) -> None:
    assert rig.attempt(1, 10, rank=2) > 0
    rig.clock.advance(0.1)
    assert rig.attempt(2, 1, rank=0) == 0
    rig.clock.advance(0.1)
    assert rig.attempt(3, 1, rank=2) > 0


def test_claim__process_does_not_retry__expires(rig: Rig) -> None:
    assert rig.attempt(1, 10) == SECOND_US
    rig.clock.advance(1 + CLAIM_TTL_US / 1e6)
    assert rig.attempt(2, 1) == 0


def test_claim__caller_gives_up__is_withdrawn(rig: Rig) -> None:
    assert rig.attempt(1, 10) == SECOND_US
    rig.clock.advance(0.2)
    assert rig.attempt(1, 10, left_us=1000) == 800_000
    assert rig.attempt(2, 1) == 0


def test_claim__caller_that_does_not_wait__leaves_none(rig: Rig) -> None:
    assert rig.attempt(1, 10, left_us=-1) == SECOND_US
    rig.clock.advance(0.1)
    assert rig.attempt(2, 1) == 0


def test_claims__more_than_kept__retry_without_one(rig: Rig) -> None:
    for claimant in range(1, CLAIMS_MAX + 3):
        assert rig.attempt(claimant, 1) > 0
    [claims] = rig.store.space_states("rate_limiter_claims:n", CLAIMS).values()
    assert len(claims) == CLAIMS_MAX


def test_claims__window__block_until_the_claimant_took_its_units() -> None:
    rig = Rig(LimitStrategy.FIXED_WINDOW)
    assert rig.attempt(9, 10) == 0
    assert rig.attempt(1, 10) == SECOND_US
    assert rig.attempt(2, 1) == SECOND_US
    rig.clock.advance(1)
    assert rig.attempt(2, 1) == BLOCKED_US_MIN
    assert rig.attempt(1, 10, waited_us=SECOND_US) == 0


def test_claims__clock_set_back__start_now_and_end_in_time() -> None:
    future = (LimitClaim(1, 1, 10**9, 5, 10**10),)
    [claim] = live_claims(future, 1000)
    assert claim.since_us == 1000
    assert claim.ends_us == 1000 + SECOND_US + CLAIM_TTL_US


def test_claims__codec__restores_what_it_wrote() -> None:
    claims = tuple(LimitClaim(2**48 - n, n % 3, 10**15 + n, n, 2 * 10**15) for n in range(CLAIMS_MAX))
    packed = CLAIMS.codec.pack(*claims)
    assert len(packed) == CLAIMS.codec.size
    assert CLAIMS.codec.unpack_from(packed) == claims
    assert CLAIMS.expires_us(claims) == 2 * 10**15
    assert CLAIMS.expires_us(()) == 0


def test_operation__outage__takes_from_the_share_without_claims() -> None:
    rig = Rig()
    demand = LimitDemand(rig.strategy, "n", "k", 1, headroom=Headroom(8, 10))
    operation = ClaimOperation(rig.script, demand, ClaimAttempt(1, 2, 0, 10**9))
    share = operation.fallback(Outage(0.0, 999_000_000, "test", 2))
    assert [key.space for key in share.state_keys] == ["rate_limiter:n"]
    assert MemoryStore(rig.clock).apply(share) == 0
    assert share.script_args() == (1, 8, 0, 0, 0, -1)


def test_operation__cancelled_after_the_grant__is_undone() -> None:
    rig = Rig()
    operation = ClaimOperation(rig.script, LimitDemand(rig.strategy, "n", "k", 3), ClaimAttempt(1, 1))
    assert operation.undo(5) is None
    undo = operation.undo(0)
    assert undo is not None
    assert undo.demands[0].amount == -3


def test_operation__key_of_another_type__is_an_error(server: Server) -> None:
    rig = Rig()
    demand = LimitDemand(rig.strategy, "n", "k", 1, headroom=Headroom(5, 10))
    with redis_store(server, rig.clock) as remote:
        command(server, "SET", "rate_limiter:n:k", "text")
        with pytest.raises(StateTypeError, match="rate_limiter:n:k"):
            remote.apply(ClaimOperation(rig.script, demand, ClaimAttempt(1, 1, 0, 10**9)))


def test_limiter__store_of_one_process__leaves_no_claims() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store, "tested")
    assert limiter.sync.acquire("k", cost=10)
    assert limiter.sync.acquire("k", cost=5, timeout=2, priority="batch")
    assert "rate_limiter_claims:tested" not in store._spaces
