"""A million keys of one strategy, each used once: the memory they take and the longest call.

As a program (``python -m benchmarks.many_keys STATE STRATEGY KEYS``) it fills one store and prints the result
as JSON. Each result comes from a new process, and no state expires while it runs. The longest call is in CPU
time of the calling thread, so that other processes of the machine do not count. The garbage collector counts,
except for its scans of objects that existed before.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.stores.shared.store import SharedStore

_KEYS, _KEYS_QUICK = 1_000_000, 100_000
_MEGABYTES_MAX = 300
_PAUSE_MS_MAX = 5
_STATES = ("memory://", "shared://")
_HOUR = 3600
_LIMITS: dict[str, LimitConfig | str] = {
    **{
        each.value: LimitConfig(5 / _HOUR, 5, _HOUR if each.value.endswith("window") else None, each)
        for each in LimitStrategy
    },
    "calendar_window": "5/month at 00:00 UTC",
}


def run(effort: Effort) -> Section:
    """Fill each engine with keys of each strategy."""
    keys = _KEYS_QUICK if effort.quick else _KEYS
    strategies = list(_LIMITS)[:1] if effort.quick else list(_LIMITS)
    section = Section(
        "Many keys",
        f"{keys:,} keys such as `user:12345` of a limit of 5 an hour, each used once, with the defaults of "
        "the engines: what they add to the process or to the shared table, and how many were refused or "
        "evicted. Then every third key is used once more, which makes the state of a sliding window grow. "
        "The longest call is that of both parts, in CPU time.",
    )
    results = {
        (state, strategy): _measure(state, strategy, keys) for state in _STATES for strategy in strategies
    }
    rows = [[f"{state} {strategy}", *_row(each)] for (state, strategy), each in results.items()]
    section.tables.append(Table(f"{keys:,} keys", ["", "memory", "refused", "evicted", "longest call"], rows))
    for state in _STATES:
        _add_goals(section, state, keys, [each for (of, _), each in results.items() if of == state])
    return section


def _add_goals(section: Section, state: str, keys: int, results: list[dict[str, Any]]) -> None:
    megabytes = max(each["megabytes"] for each in results)
    refused, evicted = (sum(each[name] for each in results) for name in ("refused", "evicted"))
    promise = f"{state}: {keys:,} keys of any strategy under {_MEGABYTES_MAX} MB, none refused or evicted"
    found = f"{megabytes:.0f} MB, {refused} refused, {evicted} evicted"
    section.goals.append(Goal(promise, found, megabytes < _MEGABYTES_MAX and not refused + evicted))
    pause_ms = max(each["pause_ms"] for each in results)
    promise = f"{state}: no call longer than {_PAUSE_MS_MAX} ms while {keys:,} keys are added and used"
    section.goals.append(Goal(promise, f"{pause_ms:.1f} ms", pause_ms < _PAUSE_MS_MAX))


def _row(result: dict[str, Any]) -> list[str]:
    counts = [str(result["refused"]), str(result["evicted"])]
    return [f"{result['megabytes']:.0f} MB", *counts, f"{result['pause_ms']:.1f} ms"]


def _measure(state: str, strategy: str, keys: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.many_keys", state, strategy, str(keys)]
    ran = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent.parent)
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


class _Filling:
    """A limiter that uses many keys, and the longest call."""

    def __init__(self, store: Store, strategy: str, keys: int) -> None:
        self._acquire = BaseLimiter(_LIMITS[strategy], store, "many").sync.acquire
        self._keys = keys
        self.pause_ms = 0.0

    def use(self, step: int) -> int:
        """Use every ``step``-th key once, and return how many were refused."""
        acquire, now, refused, longest = self._acquire, time.thread_time, 0, 0.0
        for number in range(0, self._keys, step):
            began = now()
            refused += not acquire(f"user:{number}")
            longest = max(longest, now() - began)
        self.pause_ms = max(self.pause_ms, 1000 * longest)
        return refused


def _main(state: str, strategy: str, keys: int) -> None:
    gc.freeze()
    before = _resident_bytes()
    store = MemoryStore() if state == "memory://" else SharedStore(f"bench-{os.getpid()}")
    filling = _Filling(store, strategy, keys)
    refused = filling.use(1)
    kept, size = _usage(store, before)
    filling.use(3)  # a leaky bucket refuses a second request so soon
    result = {"refused": refused, "evicted": keys - kept, "pause_ms": filling.pause_ms}
    json.dump({"megabytes": size / 1e6, **result}, sys.stdout)
    store.close()
    if isinstance(store, SharedStore):
        shutil.rmtree(store.path)


def _usage(store: MemoryStore | SharedStore, before: int) -> tuple[int, float]:
    """Return how many keys a store has, and their bytes."""
    if isinstance(store, MemoryStore):
        return len(store), _resident_bytes() - before
    usage = store.table.usage()
    return usage.keys, usage.megabytes * 2**20


def _resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
