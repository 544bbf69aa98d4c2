"""What must stay within its bounds whatever loaders, loops and users do."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest
from tests.cache.conftest import Make
from tests.cache.faces import Source

from comporta import HealthCache, Loaded
from comporta.errors import CacheUnavailableError
from comporta.events import latest_events
from comporta.testing import ManualClock

Q = {"q": "x"}


def test_get__a_name_that_holds_another_users_key__is_refused(make: Make, source: Source) -> None:
    cache = make(scope="user")
    theirs = cache.fetch(Q, source, user="a:b")
    cache.fetch({"q": "other"}, source, user="a")
    with pytest.raises(ValueError, match="params_hash must be 64 digits"):
        cache.get_from_cache("a", f"b:{theirs.params_hash}")


def test_evict__ten_hot_answers__the_one_just_fetched_stays(make: Make, source: Source) -> None:
    cache = make(entries_per_user=2)
    for number in range(2):
        for _ in range(12):
            cache.fetch({"q": number}, source)
    cache.flush()
    new = cache.fetch(Q, source)
    assert cache.row(new.params_hash).has_value
    assert make().fetch(Q, source).source == "database"
