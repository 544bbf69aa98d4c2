"""No process starves another of permits: a long-waiting process goes first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from tests.processes.fleet import (
    flush_server,
    new_state_name,
    remove_shared_state,
    run_together,
    shared_url,
    start_workers,
)
from tests.support import command, redis_store, shared_store, store_on_clock

from comporta import ConcurrencyLimit
from comporta.errors import StateTypeError
from comporta.flow import Flow
from comporta.limits.concurrency.fairness_queue import CLAIM_DUE_US, CLAIM_TTL_US, CLAIMS_MAX, Claim
from comporta.limits.concurrency.operation import (
    AcquirePermit,
    AwaitPermit,
    FinalAcquirePermit,
    ListHolders,
    PermitReply,
    ReleasePermits,
)
from comporta.limits.concurrency.permits import (
    PERMITS,
    SHARED_PERMITS_MAX,
    LocalPermitPool,
    Permit,
    PermitPool,
    new_permit,
)
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.redis.cluster_slots import operation_slot
from comporta.testing import ManualClock, Server

HOST = new_permit().owner.rpartition(":")[0]
HOUR = 3600.0
POOL = PermitPool("pncp", 1, 60_000_000)


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_on_clock(request, clock) as made:
        yield made


class Process:
    """A simulated process of this machine that competes for permits."""

    def __init__(self, store: Store, pid: int, pool: PermitPool = POOL) -> None:
        self._store = store
        self._pool = pool
        self._pid = pid
        self.permits: list[Permit] = []

    def takes(self, kind: type[AcquirePermit] = AcquirePermit) -> bool:
        return self.asks(kind).succeeded

    def waits(self) -> bool:
        return self.takes(AwaitPermit)

    def asks(self, kind: type[AcquirePermit] = AwaitPermit) -> PermitReply:
        permit = Permit(os.urandom(8).hex(), f"{HOST}:{self._pid}")
        taken = self._store.apply(kind(self._pool, permit))
        if taken.succeeded:
            self.permits.append(permit)
        return taken

    def gives(self) -> None:
        assert self._store.apply(ReleasePermits(self._pool, self.permits.pop())).succeeded


def waited_long(clock: ManualClock, *waiting: Process) -> None:
    """Let processes wait, one starting after the other, until their claims are due."""
    for process in waiting[:-1]:
        assert not process.waits()
        clock.advance(0.001)
    for _ in range(3):
        assert not any(process.waits() for process in waiting)
        clock.advance(0.1)
    assert not any(process.waits() for process in waiting)


def drive_to_end(waits: Flow[Permit | None], between: Callable[[], object]) -> Permit | None:
    """Drive a flow to its end, and call a function after each step."""
    try:
        effect = next(waits)
        while True:
            effect = waits.send(effect.block())
            between()
    except StopIteration as end:
        permit: Permit | None = end.value
        return permit


def test_claim__due__keeps_the_released_permit_free_for_its_owner(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    busy.gives()
    assert not busy.waits()
    assert not busy.takes()
    assert patient.waits()
    patient.gives()
    assert busy.waits()  # its claim ended with the grant


def test_claim__not_due_yet__blocks_no_process(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert not patient.waits()
    clock.advance((CLAIM_DUE_US - 1) / 1e6)
    assert not patient.waits()
    busy.gives()
    assert busy.waits()


def test_claim__old_without_a_retry__is_not_due(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert not patient.waits()
    clock.advance(CLAIM_DUE_US / 1e6)
    busy.gives()
    assert busy.takes()  # otherwise the permit would stay unused until the other retries
    assert not patient.waits()
    busy.gives()
    assert not busy.takes()


def test_claim__of_a_killed_process__blocks_no_process_after_it_expires(
    store: Store, clock: ManualClock
) -> None:
    busy, killed = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, killed)
    busy.gives()
    clock.advance((CLAIM_TTL_US - 1) / 1e6)
    assert not busy.takes()
    clock.advance(1e-6)
    assert busy.takes()


def test_claim__of_the_same_process__does_not_block_its_other_callers(
    store: Store, clock: ManualClock
) -> None:
    busy = Process(store, 1)
    assert busy.takes()
    waited_long(clock, busy)
    busy.gives()
    assert busy.takes()


def test_timeout_0__refused__leaves_no_claim(store: Store, clock: ManualClock) -> None:
    busy, hasty = Process(store, 1), Process(store, 2)
    assert busy.takes()
    for _ in range(5):
        assert not hasty.takes()
        clock.advance(0.1)
    busy.gives()
    assert busy.takes()


def test_timeout_0__granted__keeps_the_claim_of_a_waiter(store: Store, clock: ManualClock) -> None:
    pool = PermitPool("pncp", 2, 60_000_000)
    busy, patient = Process(store, 1, pool), Process(store, 2, pool)
    assert busy.takes()
    assert busy.takes()
    waited_long(clock, patient)
    busy.gives()
    assert patient.takes()
    busy.gives()
    assert not busy.takes()
    assert patient.waits()


def test_timeout_0__with_an_older_claim__does_not_overtake_due_claims(
    store: Store, clock: ManualClock
) -> None:
    busy, first, second = (Process(store, number) for number in (1, 2, 3))
    assert busy.takes()
    waited_long(clock, first, second)
    busy.gives()
    assert not first.takes()
    assert first.waits()


def test_claims__equally_old__are_ordered_by_owner(store: Store, clock: ManualClock) -> None:
    busy, one, other = (Process(store, number) for number in (1, 2, 3))
    assert busy.takes()
    for _ in range(4):
        assert not one.waits()
        assert not other.waits()
        clock.advance(0.1)
    busy.gives()
    assert not other.waits()
    assert one.waits()


def test_claims__several_due__are_served_in_order_of_arrival(store: Store, clock: ManualClock) -> None:
    busy, *patient = (Process(store, number) for number in (1, 4, 2, 3))
    assert busy.takes()
    waited_long(clock, *patient)
    for number, process in enumerate(patient):
        (busy if number == 0 else patient[number - 1]).gives()
        assert not any(other.waits() for other in (busy, *patient[:number], *patient[number + 1 :]))
        assert process.waits()


def test_claims__fewer_than_free_permits__block_no_process(store: Store, clock: ManualClock) -> None:
    pool = PermitPool("pncp", 3, 60_000_000)
    busy, patient = Process(store, 1, pool), Process(store, 2, pool)
    assert all(busy.takes() for _ in range(3))
    waited_long(clock, patient)
    for _ in range(3):
        busy.gives()
    assert [busy.takes() for _ in range(3)] == [True, True, False]
    assert patient.waits()


def test_final_attempt__refused__withdraws_the_claim(store: Store, clock: ManualClock) -> None:
    busy, leaving = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, leaving)
    assert not leaving.takes(FinalAcquirePermit)
    busy.gives()
    assert busy.takes()


def test_final_attempt__due__is_granted(store: Store, clock: ManualClock) -> None:
    busy, leaving = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, leaving)
    busy.gives()
    assert leaving.takes(FinalAcquirePermit)
    leaving.gives()
    assert busy.takes()


@pytest.mark.parametrize("seconds", [-HOUR, -0.1, HOUR])
def test_clock__set_forward_or_back__does_not_extend_a_claim(
    store: Store, clock: ManualClock, seconds: float
) -> None:
    busy, killed = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, killed)
    busy.gives()
    clock.advance(seconds)
    busy.takes()
    clock.advance(CLAIM_TTL_US / 1e6)
    assert busy.permits or busy.takes()


def test_clock__set_back__waiters_still_get_their_turn(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    clock.advance(-HOUR)
    waited_long(clock, patient)
    busy.gives()
    assert not busy.takes()
    assert patient.waits()


def test_claims__more_than_the_maximum__wait_without_a_claim(store: Store, clock: ManualClock) -> None:
    busy, *patient, late = (Process(store, number) for number in range(1, CLAIMS_MAX + 3))
    assert busy.takes()
    waited_long(clock, *patient, late)
    busy.gives()
    for process in patient:
        assert not late.waits()
        assert process.waits()
        process.gives()
    assert late.waits()


def test_claims__more_than_the_maximum__those_without_one_block_no_process(
    store: Store, clock: ManualClock
) -> None:
    busy, *patient, late = (Process(store, number) for number in range(1, CLAIMS_MAX + 3))
    assert busy.takes()
    waited_long(clock, *patient, late)
    assert not any(process.takes(FinalAcquirePermit) for process in patient)
    busy.gives()
    assert busy.takes()


def test_shared__maximum_of_permits__still_keeps_ten_claims(clock: ManualClock) -> None:
    pool = PermitPool("pncp", SHARED_PERMITS_MAX, 60_000_000)
    with shared_store(clock) as store:
        busy, *patient = (Process(store, number, pool) for number in range(1, 13))
        assert all(busy.takes() for _ in range(SHARED_PERMITS_MAX))
        waited_long(clock, *patient)
        for _ in range(11):
            busy.gives()
        assert [busy.takes(), busy.takes()] == [True, False]
        assert all(process.waits() for process in patient[:10])
        assert len(store.apply(ListHolders(pool))) == SHARED_PERMITS_MAX


def test_codec__permits_and_claims__reads_back_what_it_wrote() -> None:
    permits = tuple((10 + number, f"{number:016x} {HOST}:{number}") for number in range(3))
    claims = tuple(Claim(number, f"{HOST}:{number}", 100 - number) for number in range(5))
    buffer = bytes(7) + PERMITS.codec.pack(permits, claims) + bytes(7)
    assert PERMITS.codec.unpack_from(memoryview(buffer), 7) == (permits, claims)
    assert PERMITS.expires_us((permits, claims)) == 100
    assert PERMITS.expires_us((permits, ())) == 12
    assert PERMITS.expires_us(((), claims[1:])) == 99


def test_poll__no_other_process__uses_the_usual_pause(store: Store, clock: ManualClock) -> None:
    only = Process(store, 1)
    assert only.takes()
    for _ in range(10):
        assert only.asks().poll_us == 0
        clock.advance(0.1)


def test_poll__claim_not_due__uses_the_usual_pause(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert patient.asks().poll_us == busy.asks().poll_us == 0
    clock.advance(0.1)
    assert patient.asks().poll_us == busy.asks().poll_us == 0


def test_poll__claim_due__follows_the_duration_of_the_last_call(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    assert patient.asks().poll_us == 300_000 // 16
    busy.gives()
    assert busy.asks() == PermitReply(False, 60_000_000, 4000)  # it gives way and is the second
    assert patient.waits()
    assert busy.asks().poll_us == 0
    waited_long(clock, busy)
    patient.gives()
    clock.advance(0.1)
    assert patient.asks(FinalAcquirePermit).poll_us == patient.asks(AcquirePermit).poll_us == 0


def test_poll__claim_due_and_others_wait_elsewhere__retries_soon(store: Store, clock: ManualClock) -> None:
    first, second = Process(store, 1), Process(store, 2)
    assert first.takes()
    assert not first.waits()
    clock.advance(0.001)
    assert not second.waits()
    clock.advance(0.2)
    assert first.asks().poll_us == 201_000 // 16
    assert second.asks().poll_us == 2 * (201_000 // 16)


def test_wait__claim_due__retries_soon_and_then_less_often(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    limit = ConcurrencyLimit("pncp", 1, state=store)
    waits = limit._acquire_flow(10)
    next(waits)
    slept = []
    for pace_us in (0, 4000, 2000, 0, 0, 200_000):
        began_ns = clock.now_ns()
        waits.send(PermitReply(False, 60_000_000, pace_us)).block()
        slept.append((clock.now_ns() - began_ns) // 1000)
        waits.send(None)
    waits.close()
    assert slept[1:5] == [4000, 2000, 2500, 3125]
    assert all(50_000 <= pause_us <= 100_000 for pause_us in (slept[0], slept[5]))


def test_wait__timed_out__withdraws_the_claim(store: Store, clock: ManualClock) -> None:
    limit, other = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert other.takes()
    assert limit.sync.acquire(timeout=1) is None
    other.gives()
    assert other.takes()


def test_wait__timed_out_before_other_waiters__leaves_them_the_claim(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    limit, other = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert other.takes()
    first, second = limit._acquire_flow(0.5), limit._acquire_flow(None)

    def second_comes() -> None:
        if limit._wait_queue.count("") == 1:
            next(second)

    assert drive_to_end(first, second_comes) is None
    other.gives()
    assert not other.takes()
    second.close()


def test_wait__beside_a_busy_process__gets_its_turn_in_time(store: Store, clock: ManualClock) -> None:
    limit, busy = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert busy.takes()
    began_ns = clock.now_ns()

    def call() -> None:
        if busy.permits:
            busy.gives()
        busy.waits()

    assert drive_to_end(limit._acquire_flow(5), call)
    assert (clock.now_ns() - began_ns) / 1e9 <= 0.5


def test_fallback__refused__leaves_no_claim() -> None:
    outage = Outage(0.0, 0, "gone", 1)
    store = MemoryStore()
    for kind in (AwaitPermit, FinalAcquirePermit):
        own = kind(POOL, new_permit()).fallback(outage)
        assert type(own) is AcquirePermit
    assert store.apply(AwaitPermit(POOL, new_permit()).fallback(outage)).succeeded
    full = AwaitPermit(POOL, new_permit()).fallback(outage._replace(full=True))
    assert MemoryStore(keys_max=1).apply(full) == PermitReply(False, POOL.permit_ttl_us, is_local=True)


def test_keys__any_name__are_in_one_cluster_slot() -> None:
    for name in ("pncp", "api.books"):
        operation_slot(AwaitPermit(PermitPool(name, 1, 1_000_000), new_permit()))


def test_redis__claims__are_readable_and_expire(server: Server) -> None:
    key = "concurrency:pncp:waiting"
    with redis_store(server) as store:
        busy, patient = Process(store, 1), Process(store, 2)
        assert busy.takes()
        assert command(server, "EXISTS", key) == b":0\r\n"
        assert not patient.waits()
        assert f" {HOST}:2\r\n".encode() in command(server, "ZRANGE", key, 0, -1)
        assert 0 < int(command(server, "PTTL", key)[1:]) <= 10_000
        busy.gives()
        assert patient.waits()
        assert command(server, "EXISTS", key) == b":0\r\n"


@pytest.mark.parametrize("member", ["garbage", "1 host:1", "99999999999999999999 host:1", "1", f"1 {HOST}:1"])
@pytest.mark.parametrize("score", ["inf", "1e300", "-inf", "0", "2e15"])
def test_redis__corrupt_claims__block_no_process_longer_than_a_claim(
    valkey: Server, clock: ManualClock, score: str, member: str
) -> None:
    with redis_store(valkey, clock) as store:
        command(valkey, "ZADD", "concurrency:pncp:waiting", score, member)
        limit = Process(store, 1)
        limit.waits()
        clock.advance(CLAIM_TTL_US / 1e6)
        assert limit.permits or limit.waits()
        limit.waits()
        limit.takes(FinalAcquirePermit)
        assert command(valkey, "EXISTS", "concurrency:pncp:waiting") == b":0\r\n"


def test_redis__key_of_another_type__is_named_in_the_error(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "concurrency:pncp:waiting", "x")
        with pytest.raises(StateTypeError, match="concurrency:pncp:waiting"):
            store.apply(AcquirePermit(POOL, new_permit()))


@pytest.fixture(params=["shared", "redis"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a store that worker processes share."""
    if request.param == "shared":
        name = new_state_name()
        yield shared_url(name)
        remove_shared_state(name)
    else:
        server: Server = request.getfixturevalue("valkey")
        flush_server(server.url)
        yield f"{server.url}?timeout=5"


def test_fleet__one_waiter_beside_eight_of_another_process__gets_its_share(url: str) -> None:
    with start_workers(2, "competes", url=url, seconds=3) as workers:
        many, one = run_together(workers)
    assert many > 0
    assert one >= 0.1 * (many + one)


def test_held_permits__deadline_reached__is_free() -> None:
    state = (((5, "a h:1"), (6, "b h:1")), ())
    assert PermitPool("n", 2, 60).held_permits(state, 5) == ((6, "b h:1"),)


def test_held_permits__local_share__has_each_permit_once_with_its_later_deadline() -> None:
    own = ((7, "a h:1"), (8, "c h:1"))
    pool = LocalPermitPool("n", 2, 60, lambda now_us: own)
    state = (((9, "a h:1"), (6, "b h:1")), ())
    assert sorted(pool.held_permits(state, 5)) == [(6, "b h:1"), (8, "c h:1"), (9, "a h:1")]


def test_permits_codec__host_name_with_a_colon__keeps_the_process() -> None:
    packed = PERMITS.codec.pack(((5, "0123456789abcdef a:b:77"),), ())
    [(_, text)] = PERMITS.codec.unpack_from(packed)[0]
    assert text.endswith(":77")
