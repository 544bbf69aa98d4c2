"""An outage of the store that lasts longer than the permit of an open stream."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.support import wait_until

from comporta import LimitReachedError, Upstream
from comporta.testing import Server

TTL = 3.0
"""Renewed every second: a busy machine may keep the thread that does so from running for a while."""


@pytest.mark.parametrize("is_restarted", [False, True])
def test_outage__longer_than_the_permit_of_an_open_stream__keeps_the_permit(is_restarted: bool) -> None:
    """The permit counts during the outage, and is in the store again when it is over."""
    with Server() as server:
        upstream = Upstream(
            "streamed", "1000/s", max_concurrent=1, max_wait=0, permit_ttl=TTL, state=server.url
        )
        permits = upstream.permits
        assert permits is not None

        @upstream.guard
        def events() -> Iterator[int]:
            yield 1
            yield 2

        stream = events()
        assert next(stream) == 1
        began = time.monotonic()
        if is_restarted:
            server.kill()
        else:
            server.freeze()
        wait_until(lambda: permits.fallback is not None)

        def is_refused_for_long() -> bool:
            with pytest.raises(LimitReachedError):
                next(events())
            return time.monotonic() - began > 1.5 * TTL

        wait_until(is_refused_for_long)
        if is_restarted:
            server.start()
        else:
            server.thaw()
        wait_until(lambda: permits.fallback is None)
        assert permits.sync.in_use() == 1
        with pytest.raises(LimitReachedError):
            next(events())
        assert list(stream) == [2]
        wait_until(lambda: permits.sync.in_use() == 0)
        assert list(events()) == [1, 2]
        upstream.sync.close()
