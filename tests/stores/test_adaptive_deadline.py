"""The deadline follows the usual round trip of a server, within its bounds."""

from __future__ import annotations

import pytest

from comporta.stores.redis.cluster import ClusterStore
from comporta.stores.redis.deadline import AdaptiveDeadline
from comporta.stores.redis.store import RedisStore

MS = 1_000_000


def test_deadline__near_server__is_the_configured_one() -> None:
    deadline = AdaptiveDeadline(0.05, 0.2)
    deadline.record(MS)
    assert deadline.seconds == 0.05


def test_deadline__far_server__is_three_round_trips() -> None:
    deadline = AdaptiveDeadline(0.05, 0.2)
    deadline.record(40 * MS)
    assert deadline.seconds == pytest.approx(0.12)


def test_deadline__very_far_server__is_bounded() -> None:
    deadline = AdaptiveDeadline(0.05, 0.2)
    deadline.record(5000 * MS)
    assert deadline.seconds == 0.2


def test_deadline__one_slow_reply__is_forgotten_after_some_calls() -> None:
    deadline = AdaptiveDeadline(0.05, 0.2)
    deadline.record(45 * MS)
    for _ in range(20):
        deadline.record(MS)
    assert deadline.seconds == 0.05


def test_timeout_max__default_and_given__bound_the_deadline() -> None:
    for store in (RedisStore("redis://h/0"), RedisStore("redis://h/0", timeout_max=0.1)):
        store.deadline.record(10**12)
    assert RedisStore("redis://h/0").timeout_max == 0.2
    assert store.deadline.seconds == 0.1
    cluster = ClusterStore("redis+cluster://h", timeout_max=0.3)
    assert cluster.node(("h", 6379)).timeout_max == 0.3


@pytest.mark.parametrize("timeout_max", [0.01, 61])
def test_timeout_max__out_of_bounds__is_refused(timeout_max: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_max must be timeout \(0.05\) to 60 seconds, got"):
        RedisStore("redis://h/0", timeout_max=timeout_max)
