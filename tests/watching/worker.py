"""What worker processes do that are watched: the program of ``tests/processes/fleet.py`` for these tests."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable

from tests.processes.jobs import ready, say

from comporta import LimitConfig, Upstream, events
from comporta.metrics import use_metrics
from comporta.watching import Tallies, Teller
from comporta.watching import teller as tellers

CAPACITY = 1000

tellers._END_SECONDS = 60.0  # a second is little on a busy machine, and what is not told by then is missing


def told(state: str, number: int, calls: int) -> None:
    """Make some calls, hold one in flight, and tell of it until the word to end comes."""
    upstream = Upstream("pncp", "1000/s", max_concurrent=5, state=state)
    own = Upstream(f"own-{number}", "1000/s", state=state)
    tallies = Tallies()
    use_metrics(tallies)
    teller = Teller(upstream.store, {"pncp": upstream, own.name: own}, tallies, every=0.05)
    teller.start()
    ready()
    for _ in range(calls):
        upstream.sync.call(lambda: None)
    events.publish("deployed", "pncp", f"worker {number} is here", "info")

    def holding() -> None:
        say(os.getpid())
        sys.stdin.readline()

    upstream.sync.call(holding)
    teller.close()
    say("over")


def leasing(state: str, number: int) -> None:
    """Take a little from a limit on lease, and tell of it until the word to end comes."""
    limit = LimitConfig(CAPACITY, CAPACITY, lease=10)
    upstream = Upstream("pncp", limit, state=state)
    teller = Teller(upstream.store, {"pncp": upstream}, Tallies(), every=0.05)
    teller.start()
    ready()
    say(os.getpid())
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        upstream.limiter.sync.acquire()
    sys.stdin.readline()
    teller.close()
    say("over")


if __name__ == "__main__":
    jobs: dict[str, Callable[..., None]] = {"told": told, "leasing": leasing}
    jobs[sys.argv[1]](**json.loads(sys.argv[2]))
