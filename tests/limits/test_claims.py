"""No process starves another of permits: who has waited for long elsewhere goes first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from tests.limits import permit_worker
from tests.processes import fleet
from tests.processes.fleet import flushed, new_name, remove, shared_url, started, together
from tests.support import command, redis_store, shared_store, store_by_hand

from comporta import ConcurrencyLimit
from comporta.errors import StateTypeError
from comporta.flow import Flow
from comporta.limits.claims import CLAIMS_MAX, DUE_US, LIFE_US, Claim
from comporta.limits.holding import (
    PERMITS,
    SHARED_MAX,
    AwaitPermit,
    GivePermit,
    Holders,
    LastTake,
    Permit,
    Room,
    Taken,
    TakePermit,
)
from comporta.stores.base import Outage, Store
from comporta.stores.memory import MemoryStore
from comporta.stores.slots import slot_of
from comporta.testing import ManualClock, Server

HOST = Permit.new().owner.rpartition(":")[0]
HOUR = 3600.0
ROOM = Room("pncp", 1, 60_000_000)


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_by_hand(request, clock) as made:
        yield made


class Process:
    """One that competes with others: a number in place of a process of this machine."""

    def __init__(self, store: Store, pid: int, room: Room = ROOM) -> None:
        self._store = store
        self._room = room
        self._pid = pid
        self.permits: list[Permit] = []

    def takes(self, kind: type[TakePermit] = TakePermit) -> bool:
        return self.asks(kind).done

    def waits(self) -> bool:
        return self.takes(AwaitPermit)

    def asks(self, kind: type[TakePermit] = AwaitPermit) -> Taken:
        permit = Permit(os.urandom(8).hex(), f"{HOST}:{self._pid}")
        taken = self._store.apply(kind(self._room, permit))
        if taken.done:
            self.permits.append(permit)
        return taken

    def gives(self) -> None:
        assert self._store.apply(GivePermit(self._room, self.permits.pop())).done


def waited_long(clock: ManualClock, *waiting: Process) -> None:
    """Let some wait, who come one after the other, until their claims are due; each asks in time."""
    for process in waiting[:-1]:
        assert not process.waits()
        clock.advance(0.001)
    for _ in range(3):
        assert not any(process.waits() for process in waiting)
        clock.advance(0.1)
    assert not any(process.waits() for process in waiting)


def ended(waits: Flow[Permit | None], between: Callable[[], object]) -> Permit | None:
    """Drive a flow to its end; something happens after each step."""
    try:
        effect = next(waits)
        while True:
            effect = waits.send(effect.block())
            between()
    except StopIteration as end:
        permit: Permit | None = end.value
        return permit


def test_claim__due__the_permit_given_back_is_left_for_it(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    busy.gives()
    assert not busy.waits()
    assert not busy.takes()
    assert patient.waits()
    patient.gives()
    assert busy.waits()  # the claim is gone with the permit


def test_claim__not_due_yet__stops_nobody(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert not patient.waits()
    clock.advance((DUE_US - 1) / 1e6)
    assert not patient.waits()
    busy.gives()
    assert busy.waits()


def test_claim__old_but_not_asked_for_since__is_not_due(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert not patient.waits()
    clock.advance(DUE_US / 1e6)
    busy.gives()
    assert busy.takes()  # a permit would lie idle until the other comes by
    assert not patient.waits()
    busy.gives()
    assert not busy.takes()


def test_claim__of_one_who_was_killed__blocks_nobody_after_its_end(store: Store, clock: ManualClock) -> None:
    busy, killed = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, killed)
    busy.gives()
    clock.advance((LIFE_US - 1) / 1e6)
    assert not busy.takes()
    clock.advance(1e-6)
    assert busy.takes()


def test_claim__of_the_same_process__stops_nobody_of_it(store: Store, clock: ManualClock) -> None:
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


def test_timeout_0__served__leaves_the_claim_of_one_who_waits(store: Store, clock: ManualClock) -> None:
    room = Room("pncp", 2, 60_000_000)
    busy, patient = Process(store, 1, room), Process(store, 2, room)
    assert busy.takes()
    assert busy.takes()
    waited_long(clock, patient)
    busy.gives()
    assert patient.takes()
    busy.gives()
    assert not busy.takes()
    assert patient.waits()


def test_timeout_0__of_a_process_that_came_first__passes_nobody(store: Store, clock: ManualClock) -> None:
    busy, first, second = (Process(store, number) for number in (1, 2, 3))
    assert busy.takes()
    waited_long(clock, first, second)
    busy.gives()
    assert not first.takes()
    assert first.waits()


def test_claims__due_since_the_same_moment__have_an_order(store: Store, clock: ManualClock) -> None:
    busy, one, other = (Process(store, number) for number in (1, 2, 3))
    assert busy.takes()
    for _ in range(4):
        assert not one.waits()
        assert not other.waits()
        clock.advance(0.1)
    busy.gives()
    assert not other.waits()
    assert one.waits()


def test_claims__several_due__are_served_in_the_order_they_came(store: Store, clock: ManualClock) -> None:
    busy, *patient = (Process(store, number) for number in (1, 4, 2, 3))
    assert busy.takes()
    waited_long(clock, *patient)
    for number, process in enumerate(patient):
        (busy if number == 0 else patient[number - 1]).gives()
        assert not any(other.waits() for other in (busy, *patient[:number], *patient[number + 1 :]))
        assert process.waits()


def test_claims__fewer_than_free_permits__hold_nobody_up(store: Store, clock: ManualClock) -> None:
    room = Room("pncp", 3, 60_000_000)
    busy, patient = Process(store, 1, room), Process(store, 2, room)
    assert all(busy.takes() for _ in range(3))
    waited_long(clock, patient)
    for _ in range(3):
        busy.gives()
    assert [busy.takes() for _ in range(3)] == [True, True, False]
    assert patient.waits()


def test_last_take__refused__withdraws_the_claim(store: Store, clock: ManualClock) -> None:
    busy, leaving = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, leaving)
    assert not leaving.takes(LastTake)
    busy.gives()
    assert busy.takes()


def test_last_take__due__is_served(store: Store, clock: ManualClock) -> None:
    busy, leaving = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, leaving)
    busy.gives()
    assert leaving.takes(LastTake)
    leaving.gives()
    assert busy.takes()


@pytest.mark.parametrize("seconds", [-HOUR, -0.1, HOUR])
def test_clock__set__lets_a_claim_block_nobody_for_longer(
    store: Store, clock: ManualClock, seconds: float
) -> None:
    busy, killed = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, killed)
    busy.gives()
    clock.advance(seconds)
    busy.takes()
    clock.advance(LIFE_US / 1e6)
    assert busy.permits or busy.takes()


def test_clock__set_back__lets_those_who_wait_have_their_turn_all_the_same(
    store: Store, clock: ManualClock
) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    clock.advance(-HOUR)
    waited_long(clock, patient)
    busy.gives()
    assert not busy.takes()
    assert patient.waits()


def test_claims__more_than_are_kept__wait_without_one(store: Store, clock: ManualClock) -> None:
    busy, *patient, late = (Process(store, number) for number in range(1, CLAIMS_MAX + 3))
    assert busy.takes()
    waited_long(clock, *patient, late)
    busy.gives()
    for process in patient:
        assert not late.waits()
        assert process.waits()
        process.gives()
    assert late.waits()


def test_claims__more_than_are_kept__those_without_one_stop_nobody(store: Store, clock: ManualClock) -> None:
    busy, *patient, late = (Process(store, number) for number in range(1, CLAIMS_MAX + 3))
    assert busy.takes()
    waited_long(clock, *patient, late)
    assert not any(process.takes(LastTake) for process in patient)
    busy.gives()
    assert busy.takes()


def test_shared__as_many_permits_as_there_is_room_for__still_keeps_ten_claims(clock: ManualClock) -> None:
    room = Room("pncp", SHARED_MAX, 60_000_000)
    with shared_store(clock) as store:
        busy, *patient = (Process(store, number, room) for number in range(1, 13))
        assert all(busy.takes() for _ in range(SHARED_MAX))
        waited_long(clock, *patient)
        for _ in range(11):
            busy.gives()
        assert [busy.takes(), busy.takes()] == [True, False]
        assert all(process.waits() for process in patient[:10])
        assert len(store.apply(Holders(room))) == SHARED_MAX


def test_codec__permits_and_claims__reads_what_it_wrote() -> None:
    permits = tuple((10 + number, f"{number:016x} {HOST}:{number}") for number in range(3))
    claims = tuple(Claim(number, f"{HOST}:{number}", 100 - number) for number in range(5))
    buffer = bytearray(PERMITS.codec.size + 7)
    PERMITS.codec.pack_into(buffer, 7, permits, claims)
    assert PERMITS.codec.unpack_from(memoryview(buffer), 7) == (permits, claims)
    assert PERMITS.expires_us((permits, claims)) == 100
    assert PERMITS.expires_us((permits, ())) == 12
    assert PERMITS.expires_us(((), claims[1:])) == 99


def test_pace__nobody_else_there__is_no_hurry(store: Store, clock: ManualClock) -> None:
    only = Process(store, 1)
    assert only.takes()
    for _ in range(10):
        assert only.asks().pace_us == 0
        clock.advance(0.1)


def test_pace__not_due__is_no_hurry(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    assert patient.asks().pace_us == busy.asks().pace_us == 0
    clock.advance(0.1)
    assert patient.asks().pace_us == busy.asks().pace_us == 0


def test_pace__due__follows_how_long_the_last_call_takes(store: Store, clock: ManualClock) -> None:
    busy, patient = Process(store, 1), Process(store, 2)
    assert busy.takes()
    waited_long(clock, patient)
    assert patient.asks().pace_us == 300_000 // 16
    busy.gives()
    assert busy.asks() == Taken(False, 60_000_000, 4000)  # it gives way, and is the second
    assert patient.waits()
    assert busy.asks().pace_us == 0
    waited_long(clock, busy)
    patient.gives()
    clock.advance(0.1)
    assert patient.asks(LastTake).pace_us == patient.asks(TakePermit).pace_us == 0


def test_pace__due_and_only_others_who_wait_elsewhere__is_a_hurry(store: Store, clock: ManualClock) -> None:
    first, second = Process(store, 1), Process(store, 2)
    assert first.takes()
    assert not first.waits()
    clock.advance(0.001)
    assert not second.waits()
    clock.advance(0.2)
    assert first.asks().pace_us == 201_000 // 16
    assert second.asks().pace_us == 2 * (201_000 // 16)


def test_wait__told_to_hurry__asks_again_soon_and_then_by_and_by_less_often(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    limit = ConcurrencyLimit("pncp", 1, state=store)
    waits = limit.taking(10)
    next(waits)
    slept = []
    for pace_us in (0, 4000, 2000, 0, 0, 200_000):
        began_ns = clock.now_ns()
        waits.send(Taken(False, 60_000_000, pace_us)).block()
        slept.append((clock.now_ns() - began_ns) // 1000)
        waits.send(None)
    waits.close()
    assert slept[1:5] == [4000, 2000, 2500, 3125]
    assert all(50_000 <= pause_us <= 100_000 for pause_us in (slept[0], slept[5]))


def test_wait__in_vain__takes_the_claim_along(store: Store, clock: ManualClock) -> None:
    limit, other = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert other.takes()
    assert limit.sync.acquire(timeout=1) is None
    other.gives()
    assert other.takes()


def test_wait__in_vain_with_others_in_line__leaves_them_the_claim(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    limit, other = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert other.takes()
    first, second = limit.taking(0.5), limit.taking(None)

    def second_comes() -> None:
        if limit._lines.count("") == 1:
            next(second)

    assert ended(first, second_comes) is None
    other.gives()
    assert not other.takes()
    second.close()


def test_wait__against_a_busy_process__has_its_turn_in_time(store: Store, clock: ManualClock) -> None:
    limit, busy = ConcurrencyLimit("pncp", 1, state=store), Process(store, 1)
    assert busy.takes()
    began_ns = clock.now_ns()

    def call() -> None:
        if busy.permits:
            busy.gives()
        busy.waits()

    assert ended(limit.taking(5), call)
    assert (clock.now_ns() - began_ns) / 1e9 <= 0.5


def test_alone__leaves_no_claim() -> None:
    outage = Outage(0.0, 0, "gone", 1)
    store = MemoryStore()
    for kind in (AwaitPermit, LastTake):
        own = kind(ROOM, Permit.new()).alone(outage)
        assert type(own) is TakePermit
    assert store.apply(AwaitPermit(ROOM, Permit.new()).alone(outage)).done
    full = AwaitPermit(ROOM, Permit.new()).alone(outage._replace(full=True))
    assert MemoryStore(keys_max=1).apply(full) == Taken(False, ROOM.hold_us)


def test_keys__of_any_name__live_in_one_part_of_a_cluster() -> None:
    for name in ("pncp", "api.books"):
        slot_of(AwaitPermit(Room(name, 1, 1_000_000), Permit.new()))


def test_redis__claims__are_readable_and_end(server: Server) -> None:
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
def test_redis__poison__holds_nobody_out_for_longer_than_a_claim(
    valkey: Server, clock: ManualClock, score: str, member: str
) -> None:
    with redis_store(valkey, clock) as store:
        command(valkey, "ZADD", "concurrency:pncp:waiting", score, member)
        limit = Process(store, 1)
        limit.waits()
        clock.advance(LIFE_US / 1e6)
        assert limit.permits or limit.waits()
        limit.waits()
        limit.takes(LastTake)
        assert command(valkey, "EXISTS", "concurrency:pncp:waiting") == b":0\r\n"


def test_redis__something_else_at_the_key__is_named(server: Server) -> None:
    with redis_store(server) as store:
        command(server, "SET", "concurrency:pncp:waiting", "x")
        with pytest.raises(StateTypeError, match="concurrency:pncp:waiting"):
            store.apply(TakePermit(ROOM, Permit.new()))


@pytest.fixture(params=["shared", "redis"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a state that processes share; they run the program beside this file."""
    monkeypatch.setattr(fleet, "PROGRAM", permit_worker.__name__)
    if request.param == "shared":
        name = new_name()
        yield shared_url(name)
        remove(name)
    else:
        server: Server = request.getfixturevalue("valkey")
        flushed(server.url)
        yield f"{server.url}?timeout=5"


def test_fleet__one_waiter_against_eight_of_another_process__has_its_share(url: str) -> None:
    with started(2, "competes", url=url, seconds=3) as workers:
        many, one = together(workers)
    assert many > 0
    assert one >= 0.1 * (many + one)
