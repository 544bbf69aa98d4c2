"""The command line: ``python -m benchmarks [--only NAME] [--quick] [--write]``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks import (
    accuracy,
    batch,
    breakers,
    cache,
    composition,
    dashboard,
    degradation,
    footprint,
    latency,
    lease,
    loop,
    memory,
    outages,
    pipeline,
    redis,
    server,
    service,
    shared,
    startup,
)
from benchmarks.measure import Effort
from benchmarks.report import Section, as_text, summary, write_page

SECTIONS: dict[str, Callable[[Effort], Section]] = {
    "memory": memory.blocking,
    "memory-async": memory.awaiting,
    "shared": shared.one_process,
    "shared-two": shared.two_processes,
    "redis": redis.blocking,
    "redis-async": redis.awaiting,
    "leases": lease.run,
    "breaker": breakers.blocking,
    "breaker-async": breakers.awaiting,
    "breaker-redis": breakers.shared_blocking,
    "breaker-redis-async": breakers.shared_awaiting,
    "composed": composition.composed,
    "upstream": composition.upstream,
    "cache": cache.hits,
    "cache-sqlite": cache.rows,
    "cache-stampede": cache.stampede,
    "cache-outage": cache.outage,
    "channel": pipeline.channels,
    "channel-threads": pipeline.threads,
    "throttled": pipeline.throttled,
    "path": pipeline.path,
    "batch": batch.run,
    "service": service.hits,
    "dashboard": dashboard.run,
    "service-loop": loop.steps,
    "import": startup.run,
    "footprint": footprint.run,
    "accuracy": accuracy.run,
    "latency": latency.run,
    "outages": outages.run,
    "degradation": degradation.run,
}


def main() -> None:
    """Measure what was asked for, one section after the other."""
    asked = _arguments()
    effort = Effort.of(quick=asked.quick)
    sections = []
    for name in asked.only or SECTIONS:
        print(f"measuring {name} ...", flush=True)
        start = time.monotonic()
        sections.append(SECTIONS[name](effort))
        print(as_text(sections[-1]))
        print(f"\n({time.monotonic() - start:.0f} s)\n", flush=True)
    print(summary(sections))
    if asked.write:
        write_page(sections, server.describe())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="comporta beside its peers")
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a first impression, in a minute")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/benchmarks.md")
    asked = parser.parse_args()
    if asked.write and (asked.only or asked.quick):
        parser.error("--write takes the figures of a whole run: leave out --only and --quick")
    return asked


if __name__ == "__main__":
    main()
