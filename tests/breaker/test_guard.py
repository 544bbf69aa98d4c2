"""What a decorated function leaves behind in the view, for those who come after it."""

from __future__ import annotations

from collections.abc import Callable

from tests.breaker.faces import Face

from comporta.breaker.view import IN_USE_NS
from comporta.testing import ManualClock

Pair = Callable[..., tuple[Face, Face]]

_STEP_SECONDS = 0.2
_STEPS = 2 * round(IN_USE_NS / 1e9 / _STEP_SECONDS)


def test_guarded__steady_calls_on_a_shared_circuit__the_view_stays_in_the_keepers_care(
    pair: Pair, clock: ManualClock
) -> None:
    face, _ = pair(staleness=0.25)
    view = face.breaker.view
    face.guarded(bool)
    for _ in range(_STEPS):
        clock.advance(_STEP_SECONDS)
        face.guarded(bool)
        look = view.due()
        assert look is not None
        view.told(view.store.apply(look))


def test_guarded__success_on_a_shared_circuit__the_next_failure_of_the_worker_starts_the_count_again(
    pair: Pair, clock: ManualClock
) -> None:
    one, other = pair(threshold=3)
    one.guarded(bool)
    other.fails(2)
    clock.advance(0.1)
    one.guarded(bool)  # by a view from before the failures: nobody is told
    clock.advance(0.1)
    one.fails()
    assert one.get_state().failures == 1
    assert one.get_state().phase == "closed"
