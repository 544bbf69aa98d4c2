"""What workers that share a circuit see of each other (A2), and what becomes of it when they are cut off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.breaker.faces import Face
from tests.stores.switchable import Switchable, by_hand, moved

from comporta import CircuitBreaker, StateError, StateUnavailableError, events
from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import Known, Step
from comporta.breaker.state import CLOSED, EMPTY, OPEN, OPEN_UP, Asked, Forced
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

Pair = Callable[..., tuple[Face, Face]]
GONE = StateUnavailableError("the server is gone")


def test_pair__one_records_fifty_failures__the_other_is_degraded(pair: Pair) -> None:
    one, two = pair(threshold=50, cooldown_seconds=120)
    for _ in range(50):
        one.record_failure()
    assert two.breaker.is_degraded is True
    assert two.refused() is not None


def test_pair__one_opens__the_other_knows_within_the_staleness(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=1, staleness=0.25)
    assert two.refused() is None
    one.fails()
    clock.advance(0.25)
    assert two.refused() is not None


def test_pair__half_open__one_probe_for_both(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=1, cooldown_seconds=10, probe_seconds=5)
    one.fails()
    assert two.breaker.is_degraded is True
    clock.advance(10)
    probe = two.allow()
    assert probe.probe
    assert not one.allow()
    [out] = one.get_state().probes
    assert out.owner.rpartition(":")[2].isdigit()
    two.record_success(probe)
    clock.advance(0.25)
    assert one.refused() is None


def test_pair__success_between_the_failures__starts_the_count_again(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=2)
    assert two.refused() is None
    one.fails()
    clock.advance(0.1)
    assert two.refused() is None  # it does not know of the failure yet, so nothing is written
    clock.advance(0.1)
    two.fails()
    assert one.get_state().failures == 1


def test_pair__success_before_the_first_failure__starts_nothing_again(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=2)
    assert two.refused() is None
    clock.advance(0.1)
    one.fails()
    clock.advance(0.1)
    two.fails()
    assert one.get_state().phase == "open"


def test_pair__success_while_failures_are_known__is_written(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=5)
    one.fails(3)
    assert two.refused() is None
    assert one.get_state().failures == 0


def test_force__by_one__reaches_the_other(pair: Pair, clock: ManualClock) -> None:
    one, two = pair()
    assert two.refused() is None
    one.force("open", "moving")
    clock.advance(0.25)
    error = two.refused()
    assert error is not None
    assert error.why == "moving"


@pytest.fixture
def cut(clock: ManualClock) -> tuple[FailoverStore, Switchable]:
    return by_hand(clock)


def _face(store: FailoverStore, **config: object) -> Face:
    return Face(CircuitBreaker("pncp", state=store, **config), None)  # type: ignore[arg-type]


def test_alone__open_when_last_seen__stays_open_until_its_deadline(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=10)
    face.fails()
    primary.error = GONE
    for _ in range(19):
        clock.advance(0.5)
        error = face.refused()
        assert error is not None
        assert error.why == "OSError: no route"
        assert face.breaker.is_degraded is True
    assert face.breaker.fallback is not None
    clock.advance(0.5)
    assert face.breaker.is_degraded is False
    first = face.allow()
    assert first.probe
    assert not face.allow()
    face.record_success(first)
    assert face.breaker.phase == "closed"
    assert face.refused() is None


def test_alone__never_seen_before__is_closed_and_opens_at_its_part_of_the_threshold(
    cut: tuple[FailoverStore, Switchable],
) -> None:
    store, primary = cut
    store.keeper.census.heard(3)
    primary.error = GONE
    face = _face(store, threshold=8)
    face.fails(2)
    assert face.breaker.phase == "closed"
    face.fails()
    assert face.breaker.phase == "open"
    assert face.get_state().fallback is not None


def test_alone__forced_when_last_seen__stays_forced(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store)
    face.force("open", "moving")
    primary.error = GONE
    clock.advance(1)
    error = face.refused()
    assert error is not None
    assert error.why == "moving"
    with pytest.raises(StateUnavailableError):
        face.force(None)


def test_alone__force_was_revoked_while_nobody_called__is_not_forced(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    operator = CircuitBreaker("pncp", state=primary)
    operator.sync.force("open", "moving")
    face = _face(store)
    assert face.refused() is not None
    moved(store)
    clock.advance(60)
    operator.sync.force(None)
    moved(store)
    primary.error = GONE
    clock.advance(60)
    assert face.refused() is None


def test_alone__ramp_when_last_seen__begins_its_ramp_again(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=10, ramp_steps=1, ramp_seconds=5)
    face.fails()
    clock.advance(10)
    assert face.refused() is None
    primary.error = GONE
    clock.advance(4)
    assert face.get_state().share == 0.5
    clock.advance(5)
    assert face.breaker.phase == "closed"


def test_alone__opened_meanwhile__is_told_to_the_others_on_return(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=10)
    assert face.refused() is None
    clock.advance(1)
    primary.error = GONE
    face.fails()
    assert face.breaker.phase == "open"
    primary.error = None
    clock.advance(4)
    moved(store)
    assert store.alone is None
    state = CircuitBreaker("pncp", 1, 10, state=primary).sync.get_state()
    assert (state.phase, state.why) == ("open", "OSError: no route")
    error = face.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(6)
    clock.advance(6)
    assert face.refused() is None


def test_alone__opened_before_others_closed_it__does_not_open_it_again(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    others = CircuitBreaker("pncp", 1, 60, state=primary)
    face = _face(store, threshold=1, cooldown_seconds=60)
    assert face.refused() is None
    primary.error = GONE
    face.fails()
    primary.error = None
    clock.advance(1)
    others.sync.record_failure("here, too")
    clock.advance(1)
    others.sync.record_success()
    moved(store)
    assert store.alone is None
    assert others.phase == "closed"
    assert face.refused() is None


@pytest.mark.parametrize("asked_meanwhile", [True, False])
def test_alone__server_comes_back_empty__stays_open_until_its_deadline_for_all(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock, *, asked_meanwhile: bool
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=10)
    face.fails()
    primary.error = GONE
    clock.advance(1)
    moved(store)
    if asked_meanwhile:
        assert face.refused() is not None
    primary.close()  # what it held is gone
    primary.error = None
    clock.advance(3)
    moved(store)
    assert store.alone is None
    state = CircuitBreaker("pncp", 1, 10, state=primary).sync.get_state()
    assert (state.phase, state.why) == ("open", "OSError: no route")
    error = face.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(6)
    clock.advance(6)
    assert face.refused() is None


def test_alone__server_comes_back_empty_after_the_deadline__is_not_opened_again(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=10)
    face.fails()
    primary.error = GONE
    clock.advance(1)
    moved(store)
    primary.close()
    primary.error = None
    clock.advance(9)
    moved(store)
    assert store.alone is None
    assert face.refused() is None


@pytest.mark.parametrize(("workers", "phase"), [(1, "open"), (2, "closed")])
def test_alone__opened_meanwhile__opens_the_fleet_only_if_enough_agree(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock, workers: int, phase: str
) -> None:
    store, primary = cut
    store.keeper.census.heard(workers)
    face = _face(store, threshold=1, cooldown_seconds=60, quorum=2)
    assert face.refused() is None
    primary.error = GONE
    face.fails()
    primary.error = None
    clock.advance(1)
    moved(store)
    assert face.get_state().phase == phase


def test_alone__two_opened_meanwhile__agree_on_return(clock: ManualClock) -> None:
    rules = BreakerConfig(1, 60, quorum=2).rules
    store = MemoryStore(clock)
    for owner, phase in (("a:1", CLOSED), ("a:1", CLOSED), ("b:2", OPEN)):
        clock.advance(1)
        asked = Asked(OPEN_UP, left_us=50_000_000, age_us=10_000_000, owner=owner, why="down")
        assert store.apply(Step("n", rules, asked, lambda: Known(EMPTY, Forced()))).phase == phase


def test_alone__few_of_many_calls_fail__successes_count_in_the_ratio(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=None, failure_ratio=0.5, minimum_calls=5)
    primary.error = GONE
    for _ in range(10):
        clock.advance(0.1)
        face.fails()
        for _ in range(9):
            assert face.refused() is None
    assert face.breaker.phase == "closed"


def test_alone__closed_by_others_meanwhile__is_closed_on_return(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=60)
    face.fails()
    primary.error = GONE
    clock.advance(1)
    assert face.refused() is not None
    primary.error = None
    CircuitBreaker("pncp", 1, 60, state=primary).sync.record_success()
    moved(store)
    assert face.refused() is None


def test_watched__in_use__is_refreshed_by_the_keeper_without_asking(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1, cooldown_seconds=60)
    assert face.refused() is None
    CircuitBreaker("pncp", 1, 60, state=primary).sync.record_failure("elsewhere")
    clock.advance(0.2)
    moved(store)
    calls = primary.calls
    error = face.refused()
    assert error is not None
    assert error.why == "elsewhere"
    assert primary.calls == calls


def test_watched__only_looked_at__is_refreshed_all_the_same(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    breaker = _face(store).breaker
    assert breaker.is_degraded is False
    for _ in range(100):
        clock.advance(0.2)
        moved(store)
        calls = primary.calls
        assert breaker.is_degraded is False
        assert primary.calls == calls


def test_watched__not_used_for_long__is_left_alone(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, _ = cut
    face = _face(store)
    assert face.breaker.view.due() is None
    assert face.refused() is None
    assert face.breaker.view.due() is not None
    clock.advance(11)
    assert face.breaker.view.due() is None
    assert face.refused() is None
    assert face.breaker.view.due() is not None


def test_watched__view_may_be_old__is_not_refreshed_more_often_than_needed(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, _ = cut
    face = _face(store, staleness=10.0)
    assert face.refused() is None
    assert face.breaker.view.due() is None
    clock.advance(9)
    assert face.breaker.view.due() is not None


def test_watched__calls_were_counted__are_reported_though_nobody_asks(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, _ = cut
    face = _face(store, threshold=None, failure_ratio=0.5, minimum_calls=4)
    for _ in range(6):
        assert face.refused() is None
    clock.advance(11)
    assert face.breaker.view.due() is not None
    assert face.breaker.view.calls == 0


def test_counted__by_the_parent__is_not_told_again_by_a_forked_child(
    cut: tuple[FailoverStore, Switchable],
) -> None:
    view = _face(cut[0], threshold=None, failure_ratio=0.5).breaker.view
    view.count_success()
    view.after_fork()
    assert view.calls == 0


def test_stale_success__of_an_earlier_generation__starts_no_count_again(
    pair: Pair, clock: ManualClock
) -> None:
    one, two = pair(threshold=3, cooldown_seconds=10)
    old = two.allow()
    one.fails(3)
    clock.advance(10)
    assert two.refused() is None
    two.fails(2)
    clock.advance(1)
    two.record_success(old)
    clock.advance(1)
    two.fails()
    assert one.get_state().phase == "open"


def test_reply__overtaken_by_a_later_one__is_not_taken_note_of(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    face = _face(store, threshold=1)
    assert face.refused() is None
    look = face.breaker.view.due()
    assert look is not None
    old = primary.apply(look)
    clock.advance(0.01)
    face.fails()
    face.breaker.view.told(old)
    assert face.breaker.phase == "open"


@pytest.mark.parametrize(("quorum", "workers", "phase"), [(2, 1, "open"), (2, 2, "closed")])
def test_quorum__one_worker_fails__opens_only_if_there_is_no_other(
    cut: tuple[FailoverStore, Switchable], quorum: int, workers: int, phase: str
) -> None:
    store, _ = cut
    store.keeper.census.heard(workers)
    face = _face(store, threshold=3, quorum=quorum)
    face.fails(3)
    assert face.breaker.phase == phase


def test_bare_store__fails__is_the_callers_to_hear_before_a_call_but_never_instead_of_its_result(
    clock: ManualClock,
) -> None:
    primary = Switchable(clock)
    breaker = CircuitBreaker("n", 5, state=primary)
    assert Face(breaker, None).refused() is None
    primary.error = GONE
    with pytest.raises(ZeroDivisionError):
        breaker(lambda: 1 / 0)()
    with pytest.raises(StateError):
        breaker.sync.record_failure()


def test_events__learnt_from_another__are_said_here_too(
    cut: tuple[FailoverStore, Switchable], clock: ManualClock
) -> None:
    store, primary = cut
    CircuitBreaker("pncp", 1, state=primary).sync.record_failure("elsewhere")
    count = len(events.latest_events())
    assert _face(store, threshold=1).breaker.is_degraded is True
    assert "breaker_opened" in [event.kind for event in events.latest_events()[min(count, 999) :]]
