"""A million keys of one strategy, each used once: the memory they take and the longest call.

As a program (``python -m benchmarks.many_keys STATE STRATEGY KEYS``) it fills one store and prints the result
as JSON. Each result comes from a new process. The longest call is in CPU time of the calling thread, so that
other processes of the machine do not count; the garbage collector does.
"""

from __future__ import annotations

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


def run(effort: Effort) -> Section:
    """Fill each engine with keys of each strategy."""
    keys = _KEYS_QUICK if effort.quick else _KEYS
    strategies = list(LimitStrategy)[:1] if effort.quick else list(LimitStrategy)
    section = Section(
        "Many keys",
        f"{keys:,} keys such as `user:12345`, each used once, with the defaults of the engines: what they "
        "add to the process or to the shared table, how many were refused, and the longest call in CPU time.",
    )
    results = {
        (state, strategy.value): _measure(state, strategy.value, keys)
        for state in _STATES
        for strategy in strategies
    }
    rows = [[f"{state} {strategy}", *_row(each)] for (state, strategy), each in results.items()]
    section.tables.append(Table(f"{keys:,} keys", ["", "memory", "refused", "longest call"], rows))
    for state in _STATES:
        _add_goals(section, state, keys, [each for (of, _), each in results.items() if of == state])
    return section


def _add_goals(section: Section, state: str, keys: int, results: list[dict[str, Any]]) -> None:
    megabytes, refused = max(each["megabytes"] for each in results), sum(each["refused"] for each in results)
    promise = f"{state}: {keys:,} keys of any strategy under {_MEGABYTES_MAX} MB, none refused"
    found = f"{megabytes:.0f} MB, {refused} refused"
    section.goals.append(Goal(promise, found, megabytes < _MEGABYTES_MAX and not refused))
    if state == "memory://":
        pause_ms = max(each["pause_ms"] for each in results)
        promise = f"{state}: no call longer than {_PAUSE_MS_MAX} ms while {keys:,} keys are added"
        section.goals.append(Goal(promise, f"{pause_ms:.1f} ms", pause_ms < _PAUSE_MS_MAX))


def _row(result: dict[str, Any]) -> list[str]:
    return [f"{result['megabytes']:.0f} MB", str(result["refused"]), f"{result['pause_ms']:.1f} ms"]


def _measure(state: str, strategy: str, keys: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.many_keys", state, strategy, str(keys)]
    ran = subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent.parent)
    result: dict[str, Any] = json.loads(ran.stdout)
    return result


def _fill(store: Store, strategy: LimitStrategy, keys: int) -> tuple[int, float]:
    """Use new keys, then every third once more; return how many were refused, and the longest call in ms."""
    config = LimitConfig(5 / 60, 5, 60 if strategy.value.endswith("window") else None, strategy)
    acquire, now = BaseLimiter(config, store, "many").sync.acquire, time.thread_time
    refused, longest = 0, 0.0
    for step in (1, 3):
        for number in range(0, keys, step):
            began = now()
            refused += not acquire(f"user:{number}") and step == 1
            longest = max(longest, now() - began)
    return refused, 1000 * longest


def _main(state: str, strategy: str, keys: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if state == "memory://":
        refused, pause_ms = _fill(MemoryStore(), LimitStrategy(strategy), keys)
        megabytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e6
    else:
        store = SharedStore(f"bench-{os.getpid()}")
        refused, pause_ms = _fill(store, LimitStrategy(strategy), keys)
        megabytes = store.table.usage().megabytes * 2**20 / 1e6
        store.close()
        shutil.rmtree(store.path)
    json.dump({"megabytes": megabytes, "refused": refused, "pause_ms": pause_ms}, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
