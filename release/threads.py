"""Hammers the core from many threads and checks that nothing is lost or granted twice: ``make threads``.

It needs no package with a compiled extension, so it runs on a Python without the GIL for which few exist.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable

from comporta import Channel, CircuitBreaker, ConcurrencyLimit, LimitConfig, TokenBucketLimiter
from comporta.limits.sync_limiter import SyncLimiter
from comporta.stores.memory import HAS_GIL
from comporta.stores.registry import close_stores
from comporta.testing import Server

THREADS = 8
ROUNDS = 10


def in_threads(function: Callable[[], None]) -> None:
    """Run a function in all threads at once."""
    barrier = threading.Barrier(THREADS)

    def start() -> None:
        barrier.wait()
        function()

    threads = [threading.Thread(target=start) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def grants(limiter: SyncLimiter, key: str, times: int = 500) -> int:
    """Acquire ``times`` times in each thread, and return how many times that was granted."""
    granted: list[bool] = []
    in_threads(lambda: granted.extend([limiter.acquire(key) for _ in range(times)]))
    return sum(granted)


def check_limit() -> str:
    """Threads take from one limit: exactly its capacity is granted, for each key."""
    limiter = TokenBucketLimiter("1000/day", state="memory://threads-limit", name="limit").sync
    for key in map(str, range(ROUNDS)):
        granted = grants(limiter, key)
        require(granted == 1000, f"key {key}: {granted} of 1000 granted")
    return "limit: exactly the capacity is granted"


def check_lease() -> str:
    """Threads take from one limit with leases: never more than its capacity is granted."""
    config = LimitConfig.parse("1000/day", lease=True)
    limiter = TokenBucketLimiter(config, state="memory://threads-lease", name="lease").sync
    for key in map(str, range(ROUNDS)):
        granted = grants(limiter, key)
        require(900 <= granted <= 1000, f"key {key}: {granted} of 1000 granted")
    return "lease: never more than the capacity is granted"


def check_channel() -> str:
    """Half of the threads send, half of them receive: each item arrives once."""
    channel: Channel[tuple[int, int]] = Channel(50)
    received: list[tuple[int, int]] = []
    senders = iter(range(THREADS))
    lock = threading.Lock()
    open_senders = threading.Semaphore(THREADS // 2 - 1)

    def work() -> None:
        with lock:
            number = next(senders)
        if number % 2:
            received.extend(channel.sync)
            return
        for item in range(2000):
            channel.sync.send((number, item))
        if not open_senders.acquire(blocking=False):
            channel.sync.close()

    in_threads(work)
    require(
        Counter(received) == Counter({(n, i): 1 for n in range(0, THREADS, 2) for i in range(2000)}), "items"
    )
    return "channel: each item arrives once"


def check_breaker() -> str:
    """Threads record failures: all of them are counted."""
    breaker = CircuitBreaker("threads", threshold=100_000, state="memory://threads-breaker")

    def work() -> None:
        for _ in range(500):
            breaker.sync.record_failure()

    in_threads(work)
    failures = breaker.sync.get_state().failures
    require(failures == THREADS * 500, f"{failures} of {THREADS * 500} failures counted")
    return "breaker: every failure is counted"


def check_permits() -> str:
    """Threads hold permits: never more than there are."""
    limit = ConcurrencyLimit("threads", 3, state="memory://threads-permits").sync
    lock, inside, most = threading.Lock(), [0], [0]

    def work() -> None:
        for _ in range(200):
            with limit.slot(timeout=60):
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with lock:
                    inside[0] -= 1

    in_threads(work)
    require(most[0] <= 3, f"{most[0]} of 3 permits in use")
    return "permits: never more than there are"


def check_server() -> str:
    """Threads use a server for the first time together: exactly the capacity of a limit is granted."""
    with Server() as server:
        for number in range(ROUNDS):
            url = f"{server.url}?timeout=5&connect_timeout=5"
            limiter = TokenBucketLimiter("1000/day", state=url, name=f"limit-{number}").sync
            granted = grants(limiter, "key", 250)
            require(granted == 1000, f"server: {granted} of 1000 granted")
            close_stores()
    return "server: exactly the capacity is granted"


def require(condition: bool, message: str) -> None:
    """End the program with a message unless a condition holds."""
    if not condition:
        sys.exit(f"comporta: {message}")


def main() -> None:
    """Run all checks."""
    sys.stdout.write(f"Python {sys.version.split()[0]} {'with' if HAS_GIL else 'without'} the GIL\n")
    sys.setswitchinterval(1e-6)
    for check in (check_limit, check_lease, check_channel, check_breaker, check_permits, check_server):
        sys.stdout.write(f"{check()}\n")


if __name__ == "__main__":
    main()
