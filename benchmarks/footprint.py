"""The memory that a key needs, and whether it is freed.

As a program (``python -m benchmarks.footprint rss|traced CONTENDER``) it fills one contender and prints by
how many bytes the process has grown. Each result comes from a new process.
"""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import redis

from benchmarks import ours, peers, server
from benchmarks.measure import Contender, Effort
from benchmarks.report import Goal, Section, Table
from comporta import LimitConfig, LimitStrategy, TokenBucketLimiter
from comporta.limits.limiter import BaseLimiter
from comporta.stores.memory import MemoryStore
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock

_KEYS = 100_000
_MEGABYTE = 1_000_000
_MEGABYTES_MAX = 30
_KEY_BYTES_MAX = 200
_KEY = "user:12345"
_PLENTY = 1_000_000
_OURS = f"{ours.COMPORTA} token bucket"
_SHOWN = (
    _OURS,
    f"{ours.COMPORTA} fixed window",
    f"{ours.COMPORTA} sliding window",
    f"{ours.COMPORTA} leaky bucket",
    f"{peers.LIMITS} fixed",
    f"{peers.LIMITS} moving",
    f"{peers.THROTTLED} GCRA",
    f"{peers.PYRATE} token bucket",
)


def run(effort: Effort) -> Section:
    """Measure keys in the process, then keys in Redis."""
    section = Section(
        "Memory used",
        f"In the process: what {_KEYS:,} keys such as `{_KEY}`, each used once, add to a new process, "
        "including the keys themselves. In Redis: MEMORY USAGE of one such key after a minute in which the "
        "limit was used completely.",
    )
    _in_process(section, _SHOWN[:1] if effort.quick else _SHOWN)
    _idle(section)
    _in_redis(section)
    return section


def _in_process(section: Section, names: Sequence[str]) -> None:
    resident = {name: _measure_growth("rss", name) / _MEGABYTE for name in names}
    allocated = _measure_growth("traced", _OURS) / _MEGABYTE
    rows = [[name, f"{megabytes:.1f} MB"] for name, megabytes in resident.items()]
    section.tables.append(Table(f"{_KEYS:,} keys in the process", ["", "resident"], rows))
    most = max(resident[_OURS], allocated)
    promise = f"memory: {_KEYS:,} keys in memory:// under {_MEGABYTES_MAX} MB"
    found = f"{resident[_OURS]:.1f} MB resident, {allocated:.1f} MB allocated"
    section.goals.append(Goal(promise, found, most < _MEGABYTES_MAX))


def _idle(section: Section) -> None:
    """Leave all keys but one idle for longer than a state may live, and count the remaining ones."""
    clock = ManualClock()
    store = MemoryStore(clock)
    limiter = TokenBucketLimiter("10/s", store)
    tracemalloc.start()
    for number in range(_KEYS):
        limiter.sync.acquire(f"user:{number}")
    full = tracemalloc.get_traced_memory()[0]
    for _ in range(3 * 60):
        clock.advance(1)
        limiter.sync.acquire("in use")
    gc.collect()
    left, bytes_left = len(store), tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    found = f"{left} of {_KEYS:,} keys and {100 * bytes_left / full:.0f} % of the memory left"
    section.goals.append(Goal("memory: idle keys are freed", found + " after 3 minutes", left <= 1))


def _in_redis(section: Section) -> None:
    rows = []
    with server.start() as running, redis.Redis.from_url(running.url) as client:
        for strategy in LimitStrategy:
            for capacity in (10, 100, 1000):
                config = LimitConfig(capacity, capacity, 1, strategy)
                rows.append((strategy, capacity, _key_bytes(client, running.url, config)))
    shown = [[f"{s.value}, {capacity}/s", f"{used} bytes"] for s, capacity, used in rows]
    section.tables.append(Table("One key in Redis", ["", "MEMORY USAGE"], shown))
    most = max(used for strategy, _, used in rows if strategy is not LimitStrategy.SLIDING_WINDOW)
    promise = f"memory: a Redis key under {_KEY_BYTES_MAX} bytes, but for the exact sliding window"
    section.goals.append(Goal(promise, f"{most} bytes", most < _KEY_BYTES_MAX))


def _key_bytes(client: redis.Redis, url: str, config: LimitConfig) -> int:
    """Use a limit completely: for more than a minute of the script's time, then evenly for a second."""
    clock = ManualClock(1_700_000_000)
    limiter = BaseLimiter(config, RedisStore(url, clock=clock))
    for _ in range(80):
        clock.advance(1)
        limiter.sync.acquire(_KEY, config.capacity)
    clock.advance(1)
    for _ in range(config.capacity):
        clock.advance(0.999 / config.capacity)
        limiter.sync.acquire(_KEY)
    return client.memory_usage(f"rate_limiter:{limiter.name}:{_KEY}", samples=0) or 0


def _measure_growth(how: str, name: str) -> int:
    command = [sys.executable, "-m", "benchmarks.footprint", how, name]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return int(done.stdout)


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text("ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes, and it never shrinks


def _fill(how: str, contender: Contender) -> int:
    contender.decide("warm up")
    gc.collect()
    if how == "traced":
        tracemalloc.start()
    before = _resident()
    for number in range(_KEYS):
        contender.decide(f"user:{number}")
    gc.collect()
    return tracemalloc.get_traced_memory()[0] if how == "traced" else _resident() - before


if __name__ == "__main__":
    _how, _name = sys.argv[1:]
    _contenders = {c.name: c for c in [*ours.blocking(_PLENTY), *peers.in_memory(_PLENTY)]}
    print(_fill(_how, _contenders[_name]))
