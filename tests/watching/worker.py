"""What worker processes do that are watched: the program of ``tests/processes/fleet.py`` for these tests."""

from __future__ import annotations

import json
import os
import sys

from tests.processes.jobs import ready, say

from comporta import Upstream, events
from comporta.metrics import use_metrics
from comporta.watching import Tallies, Teller


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


if __name__ == "__main__":
    {"told": told}[sys.argv[1]](**json.loads(sys.argv[2]))
