"""A worker tells the state, and nothing that happens to the state happens to the worker."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any

import pytest
from tests.stores.switchable import Switchable, by_hand, moved
from tests.support import shared_store

from comporta import Upstream, events
from comporta.breaker.admission import owner
from comporta.breaker.config import BreakerConfig
from comporta.errors import StateFullError, StateUnavailableError
from comporta.flow import run
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.history import Recall, series_room
from comporta.stores.journal import Latest
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete, Read, Write
from comporta.stores.redis import RedisStore
from comporta.stores.workers import Beat, Worker
from comporta.testing import ManualClock, Server
from comporta.threads import Run
from comporta.watching import Tallies, Teller, looking, recalling
from comporta.watching import teller as tellers
from comporta.watching.fleet import FLEET, LEASES, NAMES, STANDINGS, TURNS, leases_key, turn_of, written
from comporta.watching.series import UPSTREAM
from comporta.watching.teller import EVENTS_MAX, LEASES_MAX, entry_of

PATIENCE_SECONDS = 60.0


def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so; the machine may be slow."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.01)


def called(upstream: Upstream, times: int = 1) -> None:
    for _ in range(times):
        upstream.sync.call(lambda: "fine")


def calls_told(store: Store, name: str = "pncp") -> int:
    slots = store.apply(Recall(f"upstream.{name}")).slots
    return sum(slot.numbers[UPSTREAM.sums.index("calls")] for slot in slots)


def noted(store: Store) -> list[dict[str, Any]]:
    return [json.loads(entry) for entry in store.apply(Latest("events"))]


def heard(teller: Teller, *texts: str) -> None:
    for text in texts:
        teller.heard(events.Event(1.0, "kind", "source", text, "info"))


def test_turn__calls_were_made__tells_figures_and_how_it_stands(
    store: Store, clock: ManualClock, tallies: Tallies
) -> None:
    pncp = Upstream("pncp", "10/s", max_concurrent=5, state=store)
    teller = Teller(store, {"pncp": pncp}, tallies)
    called(pncp, 3)
    teller.turn()
    clock.advance(2)
    store.apply(Delete(TURNS, turn_of(["pncp"])))  # a server's records end by its own clock
    called(pncp, 2)
    teller.turn()
    [slot] = store.apply(Recall("upstream.pncp")).slots
    assert slot.numbers[:2] == (5, 5)
    first = UPSTREAM.first_gauge
    assert slot.numbers[first : first + 5] == (10_001, 9, 1, 1, 1), "one higher than it is, or a mark"
    kept = store.apply(Read(STANDINGS, "pncp"))
    assert kept is not None
    card = json.loads(kept)
    assert (card["name"], card["tokens"], card["in_flight"], card["in_flight_max"]) == ("pncp", 8, 0, 5)
    assert card["minute"] == {}, "whoever looks reads that anyway"


def test_turn__several_workers__one_of_them_tells_how_it_stands(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    pncp = Upstream("pncp", "10/s", state=store)
    tellers = [Teller(store, {"pncp": pncp}, Tallies()) for _ in range(3)]
    for teller in tellers:
        teller.turn()
    assert len(store.apply(Recall("upstream.pncp")).slots) == 1
    store.apply(Write(STANDINGS, "pncp", b"{}", 30))
    for teller in tellers:
        teller.turn()
    assert store.apply(Read(STANDINGS, "pncp")) == b"{}", "the turn is not over"
    clock.advance(1.6)
    tellers[2].turn()
    assert store.apply(Read(STANDINGS, "pncp")) != b"{}"
    assert store.apply(Read(TURNS, turn_of(["pncp"]))) is not None


def test_turn__nobody_tells_any_more__the_card_is_gone_and_the_name_stays(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    Teller(store, {"pncp": Upstream("pncp", "10/s", state=store)}, Tallies()).turn()
    clock.advance(31)
    found = run(looking(store))
    assert found["upstreams"] == []
    assert (store.apply(Read(FLEET, NAMES)) or b"").endswith(b" pncp")


def test_turn__events__are_in_the_journal_with_who_told_them(store: Store, tallies: Tallies) -> None:
    teller = Teller(store, {}, tallies)
    heard(teller, *(f"number {number}" for number in range(120)))
    teller.turn()
    found = noted(store)
    assert [event["text"] for event in found] == [f"number {number}" for number in range(119, -1, -1)]
    assert found[0]["worker"].endswith(f":{os.getpid()}")
    assert found[0].keys() == {"at", "kind", "source", "text", "severity", "worker"}
    teller.turn()
    assert len(noted(store)) == 120, "nothing is told twice"


def test_turn__more_events_than_it_keeps__says_how_many_were_left_out(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    teller = Teller(store, {}, Tallies())
    heard(teller, *(f"number {number}" for number in range(EVENTS_MAX + 7)))
    teller.turn()
    said, last, *_ = noted(store)
    assert said["text"] == "7 events of this worker were left out: more than 200 waited"
    assert (said["kind"], last["text"]) == ("events_left_out", f"number {EVENTS_MAX + 6}")
    teller.turn()
    assert noted(store)[0] == said, "it is said once"


@pytest.mark.parametrize("text", ["é" * 1000, "x" * 1000, '"' * 1000])
def test_entry__event_longer_than_a_note_may_be__is_cut(text: str) -> None:
    event = events.Event(1.5, "kind" * 100, "source" * 100, text, "info")
    entry = entry_of(event)
    assert len(entry) <= 1000
    assert json.loads(entry)["severity"] == "info"


def outage() -> tuple[FailoverStore, Switchable, ManualClock, Upstream]:
    clock = ManualClock(1_800_000_000)
    store, primary = by_hand(clock)
    return store, primary, clock, Upstream("pncp", "1000/s", state=store)


def back(store: FailoverStore) -> None:
    for _ in range(5):
        moved(store)
    assert store.fallback is None


def test_turn__state_gone_for_a_while__asks_nothing_and_tells_when_it_is_back(tallies: Tallies) -> None:
    store, primary, clock, pncp = outage()
    teller = Teller(store, {"pncp": pncp}, tallies)
    primary.error = StateUnavailableError("no route")
    teller.turn()
    assert store.fallback is not None
    asked = primary.calls
    called(pncp, 4)
    heard(teller, "during it")
    for _ in range(10):
        teller.turn()
        clock.advance(2)
    assert primary.calls == asked
    primary.error = None
    back(store)
    teller.turn()
    assert calls_told(store) == 4
    assert [event["text"] for event in noted(store)] == ["during it"]


def test_turn__state_falls_while_events_are_told__tells_them_when_it_is_back(tallies: Tallies) -> None:
    store, primary, _, _ = outage()
    teller = Teller(store, {}, tallies)
    for number in range(3):
        heard(teller, f"{number}")
    primary.error = StateUnavailableError("no route")
    teller.turn()
    assert store.fallback is not None
    primary.error = None
    back(store)
    teller.turn()
    assert [event["text"] for event in noted(store)] == ["2", "1", "0"]
    assert not teller._left_out


def test_turn__events_that_may_not_be_told_and_no_room_for_them__counts_those_left_out(
    tallies: Tallies,
) -> None:
    teller = Teller(MemoryStore(), {}, tallies)
    for number in range(EVENTS_MAX - 1):
        heard(teller, f"{number}")
    some = [events.Event(float(number), "k", "s", "t", "info") for number in range(5)]
    teller._put_back(some)
    assert (teller._events[0], len(teller._events), teller._left_out) == (some[-1], EVENTS_MAX, 4)
    teller._put_back(some)
    assert (teller._events[0], teller._left_out) == (some[-1], 9)


def test_turn__mistake_of_ours_with_one_upstream__tells_of_the_others(
    tallies: Tallies, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    upstreams = {name: Upstream(name, "10/s", state=store) for name in ("a", "b")}

    def odd(shown: Mapping[str, Any]) -> bytes:
        if shown["name"] == "a":
            raise ValueError("a card that is too long")
        return written(shown)

    monkeypatch.setattr(tellers, "written", odd)
    called(upstreams["a"])
    Teller(store, upstreams, tallies).turn()
    assert store.apply(Read(STANDINGS, "b")) is not None
    assert store.apply(Recall("upstream.a")).slots[0].numbers[0] == 1


def test_turn__state_gone_for_longer_than_a_minute__drops_old_figures(tallies: Tallies) -> None:
    store, primary, clock, pncp = outage()
    teller = Teller(store, {"pncp": pncp}, tallies)
    primary.error = StateUnavailableError("no route")
    teller.turn()
    called(pncp, 4)
    clock.advance(61)
    teller.turn()
    called(pncp, 1)
    clock.advance(10)
    teller.turn()
    primary.error = None
    back(store)
    teller.turn()
    assert calls_told(store) == 1


def test_turn__state_falls_while_it_looks__keeps_that_to_itself(tallies: Tallies) -> None:
    store, primary, _, pncp = outage()

    told: list[object] = []

    class Falling(Teller):
        def _mine(self, names: Iterable[str]) -> bool:
            found = super()._mine(names)
            primary.error = StateUnavailableError("no route")
            return found

        def _shown(self, name: str, upstream: Upstream) -> dict[str, Any] | None:
            told.append(super()._shown(name, upstream))
            return None

    called(pncp)
    Falling(store, {"pncp": pncp}, tallies).turn()
    primary.error = None
    assert told == [None]
    assert tallies.series() == ["upstream.pncp"], "what was not under way is kept"
    assert primary.apply(Read(STANDINGS, "pncp")) is None


@pytest.mark.parametrize("guarded", [False, True])
def test_turn__more_upstreams_than_a_table_has_room_for__tells_the_first_and_leaves_room_for_breakers(
    tallies: Tallies, guarded: bool
) -> None:
    with shared_store() as shared:
        store: Store = FailoverStore.of(shared, "shared://") if guarded else shared
        upstreams = {name: Upstream(name, "10/s", state=store) for name in "edcba"}
        teller = Teller(store, upstreams, tallies)
        tallies.counter("cache_answers", 1, outcome="hit")
        teller.turn()
        assert series_room(shared.table.large_slots) == 5
        found = {name: len(store.apply(Recall(f"upstream.{name}")).slots) for name in "abcde"}
        assert found == {"a": 1, "b": 1, "c": 1, "d": 0, "e": 0}
        assert len(store.apply(Recall("cache")).slots) == 1
        assert all(store.apply(Read(STANDINGS, name)) for name in "abcde"), (
            "their cards are told all the same"
        )
        said = {event.source: event.text for event in events.latest_events()}
        assert said["upstream.e"] == "pages will not show its history: the table has room for 5"
        if isinstance(store, FailoverStore):
            store.keeper.stop()


class Narrow(MemoryStore):
    """State in memory without room for keys that begin so."""

    full = "comporta_history"

    def apply(self, operation: Any) -> Any:
        if any(part.space.startswith(self.full) for part in operation.parts):
            raise StateFullError("no room")
        return super().apply(operation)


@pytest.mark.parametrize("guarded", [False, True])
def test_turn__no_room_for_one_part__tells_the_rest_and_says_so_once(
    clock: ManualClock, tallies: Tallies, guarded: bool
) -> None:
    narrow = Narrow(clock)
    store: Store = FailoverStore.of(narrow, "narrow://") if guarded else narrow
    teller = Teller(store, {}, tallies)
    tallies.counter("cache_answers", 1, outcome="hit")
    heard(teller, "told all the same")
    teller.turn()
    tallies.counter("cache_answers", 1, outcome="hit")
    teller.turn()
    assert [event["text"] for event in noted(narrow)] == ["told all the same"]
    said = [event for event in events.latest_events() if event.kind == "telling_failed"]
    assert [(event.source, event.text) for event in said] == [
        ("cache", "pages will not show all of it: no room")
    ]
    store.close()


def test_turn__too_many_names_for_their_record__says_so(clock: ManualClock, tallies: Tallies) -> None:
    store = MemoryStore(clock)
    many = "\n".join(f"{time.time():.0f} {'x' * 90}{number}" for number in range(39))
    store.apply(Write(FLEET, NAMES, many.encode(), 60))
    pncp = Upstream("p" * 100, "10/s", state=store)
    Teller(store, {pncp.name: pncp}, tallies).turn()
    [said] = [event for event in events.latest_events() if event.kind == "telling_failed"]
    assert said.text.startswith("there are too many names: pages will not show ppp")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"every": 0.001}, "every must be 0.01 to 10 seconds, got 0.001"),
        ({"every": 11}, "every must be 0.01 to 10 seconds, got 11"),
    ],
)
def test_teller__what_makes_no_sense__is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Teller(**{"store": MemoryStore(), "upstreams": {}, "tallies": Tallies(), **given})


def test_teller__started__tells_by_itself_and_the_rest_at_the_end(tallies: Tallies) -> None:
    store = MemoryStore()
    pncp = Upstream("pncp", "1000/s", breaker=BreakerConfig(2, 60), retry=False, state=store)
    teller = Teller(store, {"pncp": pncp}, tallies, every=0.02)
    teller.start()
    teller.start()
    called(pncp, 2)
    until(lambda: calls_told(store) == 2)
    for _ in range(2):
        with suppress(OSError):
            pncp.sync.call(_fails)
    called_once_more = Teller(store, {}, Tallies())
    called_once_more.close()
    teller.close()
    assert calls_told(store) == 4
    assert [event["kind"] for event in noted(store)] == ["breaker_opened"]
    teller.close()
    with suppress(Exception):
        called(pncp)
    assert calls_told(store) == 4, "it is closed"


def test_teller__closed_in_the_middle_of_a_turn__tells_what_was_counted_since(tallies: Tallies) -> None:
    store = MemoryStore()
    pncp = Upstream("pncp", "1000/s", state=store)
    under_way, goes_on = Lock(), Lock()
    goes_on.acquire()

    class Interrupted(Teller):
        def turn(self) -> None:
            super().turn()
            if under_way.acquire(blocking=False):
                goes_on.acquire()

    teller = Interrupted(store, {"pncp": pncp}, tallies, every=0.01)
    teller.start()
    until(under_way.locked)
    called(pncp, 3)
    life = teller._life
    assert life is not None
    life.goodbye = life.over = True  # as close() begins
    goes_on.release()
    teller.close()
    assert calls_told(store) == 3


def _fails() -> None:
    raise OSError("gone")


def test_teller__mistake_of_ours__is_said_once_and_the_thread_goes_on(tallies: Tallies) -> None:
    store = MemoryStore()
    turns: list[int] = []

    class Mistaken(Teller):
        def turn(self) -> None:
            turns.append(1)
            raise ZeroDivisionError("oops")

    teller = Mistaken(store, {}, tallies, every=0.01)
    teller.start()
    until(lambda: len(turns) > 3)
    teller.close()
    said = [event.text for event in events.latest_events() if event.kind == "telling_failed"]
    assert said == ["ZeroDivisionError('oops')"]


def test_teller__forgotten_without_a_word__ends_and_hears_nothing(tallies: Tallies) -> None:
    teller = Teller(MemoryStore(), {}, tallies, every=0.01)
    teller.start()
    life, stop = teller._life, teller._listening
    assert life is not None
    assert stop is not None
    del teller
    until(lambda: bool(gc.collect()) or not life.lives())
    until(lambda: not life.lives())
    events.publish("kind", "source", "nobody listens", "info")
    tallies.counter("cache_answers", 1, outcome="hit")
    stop()


def test_teller__no_thread_to_be_had__tries_again_with_the_next_figure(
    tallies: Tallies, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    teller = Teller(store, {}, tallies, every=0.01)
    with monkeypatch.context() as patch:
        patch.setattr(Run, "start", lambda *_, **__: False)
        teller.start()
    assert teller._life is None
    tallies.counter("cache_answers", 1, outcome="hit")
    until(lambda: bool(store.apply(Recall("cache")).slots))
    teller.close()


def test_teller__fork__rests_and_goes_on_and_the_child_begins_with_its_first_figure() -> None:
    with shared_store() as store:
        tallies = Tallies()
        teller = Teller(store, {}, tallies, every=0.02)
        idle = Teller(store, {}, Tallies())
        teller.start()
        tallies.counter("cache_answers", 1, outcome="hit")
        until(lambda: bool(store.apply(Recall("cache")).slots))
        teller.heard(events.Event(1.0, "kind", "source", "of the parent", "info"))
        child = os.fork()
        if not child:  # pragma: no cover - the child ends without a word to coverage
            code = 1
            with suppress(BaseException):
                assert not _begun(teller)
                tallies.counter("cache_answers", 0, outcome="stale")
                assert _begun(teller)
                tallies.counter("cache_answers", 10, outcome="hit")
                teller.close()
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        tallies.counter("cache_answers", 1, outcome="hit")
        until(lambda: _hits(store) == 12)
        teller.close()
        assert [event["text"] for event in noted(store)] == ["of the parent"]
        assert idle._life is None


def _begun(teller: Teller) -> bool:
    return teller._life is not None


def _hits(store: Store) -> int:
    return sum(slot.numbers[0] for slot in store.apply(Recall("cache")).slots)


def test_teller__in_a_child__is_nobody_yet_and_has_nothing_to_tell(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    teller = Teller(store, {}, Tallies())
    heard(teller, *["of the parent"] * (EVENTS_MAX + 1))
    teller.after_fork()
    teller.turn()
    assert noted(store) == []


def test_turn__breaker_that_nobody_uses__is_looked_at_and_not_kept_fresh(tallies: Tallies) -> None:
    store, _, _, pncp = outage()
    Teller(store, {"pncp": pncp}, tallies).turn()
    assert pncp.breaker is not None
    view = pncp.breaker.verbs.view
    assert view.reply is not None
    assert view.due() is None, "the keeper has no reason to ask for it"
    called(pncp)
    assert view.due() is not None


def test_teller__server_killed_and_back__tells_what_was_counted_meanwhile(tallies: Tallies) -> None:
    with Server() as server:
        store = FailoverStore.of(RedisStore(server.url, timeout=5, connect_timeout=5), server.url)
        pncp = Upstream("pncp", "1000/s", state=store)
        teller = Teller(store, {"pncp": pncp}, tallies, every=0.02)
        teller.start()
        called(pncp)
        until(lambda: calls_told(store) == 1)
        server.kill()
        until(lambda: store.fallback is not None)
        called(pncp, 3)
        server.start()
        until(lambda: store.fallback is None)
        until(lambda: calls_told(store) >= 3)
        until(lambda: any(event["kind"] == "state_return" for event in noted(store)))
        teller.close()
        assert {event["kind"] for event in noted(store)} >= {"state_fallback", "state_return"}
        store.close()


def test_turn__units_on_lease__are_told_until_they_are_given_back() -> None:
    store = MemoryStore()  # nobody comes by for leases on a clock moved by hand
    limiter = BaseLimiter(LimitConfig(100, 100, lease=10), store, "pncp")
    elsewhere = BaseLimiter(LimitConfig(100, 100, lease=10), MemoryStore(), "pcp")
    teller, worker = Teller(store, {}, Tallies()), Worker.here()

    def told() -> dict[str, int]:
        teller.turn()
        store.apply(Beat(worker))
        [shown] = run(looking(store))["workers"]
        leases: dict[str, int] = shown["leases"]
        return leases

    def leasing() -> bool:
        return all(one.sync.acquire() for one in (limiter, elsewhere)) and told() != {}

    assert told() == {}
    assert store.apply(Read(FLEET, LEASES)) is None, "it costs nothing where there are none"
    until(leasing)
    assert store.apply(Read(FLEET, LEASES)) is not None
    assert limiter.verbs.leases is not None
    limiter.verbs.leases.give_back()
    assert told() == {}
    assert json.loads(store.apply(Read(FLEET, leases_key(owner()))) or b"") == {}


def test_turn__more_limits_on_lease_than_are_told__tells_those_with_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = {f"limit-{number}": 1 + number for number in range(LEASES_MAX + 1)}
    monkeypatch.setattr(tellers, "on_lease", lambda _: many)
    store = MemoryStore()
    Teller(store, {}, Tallies()).turn()
    told = json.loads(store.apply(Read(FLEET, leases_key(owner()))) or b"")
    assert told.keys() == many.keys() - {"limit-0"}


def test_turn__circuit_that_opened_and_closed_since_the_last_one__is_in_the_history(
    clock: ManualClock,
) -> None:
    store = MemoryStore(clock)
    pncp = Upstream("pncp", "10/s", breaker=BreakerConfig(threshold=3), state=store)
    teller = Teller(store, {"pncp": pncp}, Tallies())
    now = time.time()
    for at, kind, source in (
        (now, "breaker_opened", "pncp"),
        (now - 60, "breaker_half_open", "pncp"),
        (now, "breaker_opened", "somebody-else"),
        (now, "deployed", "pncp"),
    ):
        teller.heard(events.Event(at, kind, source, "", "info"))
    teller.turn()
    teller.turn()
    found = run(recalling(store))["series"]
    assert found["pncp"]["phases"] == [[2, 0]]
    assert found["pncp"]["phase"] == [2], "the worst of them"
    assert "somebody-else" not in found
