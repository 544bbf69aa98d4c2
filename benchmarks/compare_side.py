"""The program of one revision in a comparison: runs sections, and measures a round on request.

It runs with the package and the benchmarks of that revision, which know nothing of comparisons. So it
replaces the function with which their sections time contenders, ``benchmarks.measure.in_turns``, before it
imports them. It reads orders from standard input and writes one line of JSON for each answer (see
``compare.py``).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

ROUNDS = {"quick": 9, "full": 41}
_SLOT_NS = 10_000_000


class Conversation:
    """Messages to the comparing process, on the original standard output."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self._output = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a section prints must not disturb the messages

    def send(self, **message: Any) -> None:
        """Send one message."""
        print(json.dumps(message), file=self._output, flush=True)

    def receive(self) -> str:
        """Return the next order; ends the program if there is none."""
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        return line.rstrip("\n")

    def in_turns(self, runs: Mapping[str, Any], *options: Any, **settings: Any) -> Any:
        """Stand in for ``benchmarks.measure.in_turns``: measure one round for each order."""
        timings = importlib.import_module("benchmarks.measure").Timings(runs)
        counts = {name: _count_for(run) for name, run in runs.items()}
        for name, run in runs.items():  # the section computes ratios from these, which are not used
            timings.rates[name].append(1e9 / _cost_ns(run, counts[name]))
        self.send(names=list(runs), rounds=self.rounds)
        gc.collect()
        gc.freeze()
        order = self.receive()
        while order != "next":
            self.send(costs={name: _cost_ns(runs[name], counts[name]) for name in json.loads(order)})
            order = self.receive()
        gc.unfreeze()
        return timings


def _count_for(run: Any) -> int:
    """Return how many calls fill a slot; this also warms everything up."""
    count = 8
    while True:
        spent_ns = min(_cost_ns(run, count) for _ in range(3)) * count
        if spent_ns > _SLOT_NS / 4:
            return max(1, int(count * _SLOT_NS / spent_ns))
        count *= 2


def _cost_ns(run: Any, count: int) -> float:
    """Return the CPU time of one call, of all threads of this process, in nanoseconds."""
    start = time.process_time_ns()
    made: int = run(count)
    return (time.process_time_ns() - start) / made


def main() -> None:
    """Run the sections that the comparing process names."""
    effort_name = sys.argv[1]
    talk = Conversation(ROUNDS[effort_name])
    measure = importlib.import_module("benchmarks.measure")
    measure.in_turns = talk.in_turns  # type: ignore[attr-defined]  # before the sections import it
    sections = importlib.import_module("benchmarks.__main__").SECTIONS
    effort = measure.Effort.of(quick=effort_name == "quick")
    talk.send(sections=list(sections))
    while True:
        sections[talk.receive()](effort)
        talk.send(ended=True)


if __name__ == "__main__":
    main()
