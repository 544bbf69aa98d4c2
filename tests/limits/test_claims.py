"""Claims on a limit (F9): what one process's first waiter needs, the others of its class leave untouched."""

from __future__ import annotations

import pytest
from tests.support import command, redis_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, StateTypeError
from comporta.limits.claim_operation import ClaimOperation
from comporta.limits.claims import (
    BLOCKED_US_MIN,
    CLAIM_TTL_US,
    CLAIMS,
    CLAIMS_MAX,
    ClaimAttempt,
    LimitClaim,
    live_claims,
    retry_wait_us,
)
from comporta.limits.operation import LimitDemand
from comporta.limits.priority import Headroom
from comporta.limits.scripts import claim_script
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
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

    def claimants(self) -> set[int]:
        [claims] = self.store.space_states("rate_limiter_claims:n", CLAIMS).values()
        return {claim.claimant for claim in claims}


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


def test_claims__no_room__the_last_in_order_gives_way_to_an_older_one(rig: Rig) -> None:
    for claimant in range(1, CLAIMS_MAX + 1):
        rig.attempt(claimant, 1, waited_us=1000 * claimant)
    rig.attempt(100, 1, waited_us=500)
    assert rig.claimants() == set(range(1, CLAIMS_MAX + 1)), "it is younger than all"
    rig.attempt(101, 1, waited_us=8500)
    assert rig.claimants() == {*range(2, CLAIMS_MAX + 1), 101}
    rig.attempt(102, 1, rank=2, waited_us=SECOND_US)
    assert rig.claimants() == {*range(2, CLAIMS_MAX + 1), 101}, "a lower class is behind all of them"


def test_claims__no_room__retries_after_half_of_the_time_it_has_waited(rig: Rig) -> None:
    for claimant in range(1, CLAIMS_MAX + 1):
        rig.attempt(claimant, 1, waited_us=10 * SECOND_US)
    due_us = rig.attempt(100, 1, waited_us=0)
    assert due_us == (CLAIMS_MAX + 1) * 100_000, "later than half of what it is behind the first, at most 1 s"
    assert rig.attempt(100, 1, rank=2, waited_us=3 * SECOND_US) == due_us, "at least every second"
    rig.clock.advance(1.6)
    assert rig.attempt(100, 1, waited_us=1_600_000) == 0, "their claims have expired"


NOW_US = 10**9


@pytest.mark.parametrize(
    ("waited_us", "left_us", "expected_us"),
    [(100_000, 10**9, 50_000), (20_000, 10**9, 17_000), (10**7, 10**9, SECOND_US), (10**7, 80_000, 40_000)],
)
def test_retry_wait__no_claim__is_bounded(waited_us: int, left_us: int, expected_us: int) -> None:
    assert retry_wait_us((), ClaimAttempt(1, 1, waited_us, left_us), NOW_US, 17_000) == expected_us


@pytest.mark.parametrize(
    ("rank", "first_waited_us", "expected_us"),
    [(1, 600_000, 250_000), (1, 150_000, 50_000), (1, 10**7, SECOND_US), (0, 600_000, 50_000)],
)
def test_retry_wait__no_claim_and_behind_the_first_of_its_class__is_half_of_that(
    rank: int, first_waited_us: int, expected_us: int
) -> None:
    claims = (LimitClaim(2, rank, NOW_US - first_waited_us, 1, 2 * NOW_US),)
    assert retry_wait_us(claims, ClaimAttempt(1, 1, 100_000, 10**9), NOW_US, 17_000) == expected_us


def test_retry_wait__claim_grant_or_no_time__is_the_wait() -> None:
    claims = (LimitClaim(1, 1, 0, 1, 10**9),)
    assert retry_wait_us(claims, ClaimAttempt(1, 1, 10**7, 10**9), NOW_US, 17_000) == 17_000
    assert retry_wait_us((), ClaimAttempt(1, 1, 10**7, 10**9), NOW_US, 0) == 0
    assert retry_wait_us((), ClaimAttempt(1, 1, 10**7, 10_000), NOW_US, 17_000) == 17_000


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
