"""Which steps of a degradation workers learn of at once: the first and the last."""

from __future__ import annotations

from comporta.limits.overrides.operation import LowerByStep, RaiseAlongCurve, RaiseByStep
from comporta.limits.strategies.base import LimitParams
from comporta.ramp import FULL_SHARE
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

PARAMS = LimitParams(100, 1, 10_000, 0)  # 100/s
SECOND_US = 1_000_000
HALF = FULL_SHARE // 2
KEY = "rate_limiter_change:n"


def test_steps__first_and_last__are_changes_and_those_between_are_not() -> None:
    clock = ManualClock(1_800_000_000)
    store = MemoryStore(clock)
    lowered, raised = LowerByStep("n", PARAMS, HALF // 2, 1), RaiseByStep("n", PARAMS, HALF // 2, SECOND_US)
    names = []
    for step in (lowered, lowered, raised, raised, raised):
        names.append(step.changed_name(store.apply(step)))
        clock.advance(2)
    assert names == [KEY, None, None, KEY, None]


def test_curve__limit_that_was_not_lowered__stays() -> None:
    store, curve = MemoryStore(ManualClock(1_800_000_000)), RaiseAlongCurve("n", PARAMS, HALF, SECOND_US, 1)
    reply = store.apply(curve)
    assert (reply.changed, reply.share, curve.changed_name(reply)) == (False, FULL_SHARE, None)
