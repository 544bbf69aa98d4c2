"""The command line: ``python -m benchmarks [--only NAME] [--quick] [--write] [--compare REVISION]``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from benchmarks import (
    accuracy,
    batch,
    breakers,
    budgets,
    cache,
    composition,
    dashboard,
    degradation,
    footprint,
    latency,
    lease,
    loop,
    many_keys,
    memory,
    outages,
    paths,
    pipeline,
    redis,
    refusals,
    server,
    service,
    shared,
    startup,
    transports,
)
from benchmarks.compare import compare
from benchmarks.measure import Effort
from benchmarks.report import Section, as_text, summary, write_page

SECTIONS: dict[str, Callable[[Effort], Section]] = {
    "memory": memory.blocking,
    "memory-async": memory.awaiting,
    "paths": paths.run,
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
    "transport": transports.run,
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
    "many-keys": many_keys.run,
    "accuracy": accuracy.run,
    "budgets": budgets.run,
    "latency": latency.run,
    "outages": outages.run,
    "degradation": degradation.run,
    "refusals": refusals.run,
}


def main() -> None:
    """Run the selected sections, one after the other."""
    options = _arguments()
    if options.compare:
        compare(options.compare, options.only, quick=options.quick, same_benchmarks=options.same_benchmarks)
        return
    effort = Effort.of(quick=options.quick)
    sections = []
    for name in options.only or SECTIONS:
        print(f"measuring {name} ...", flush=True)
        start = time.monotonic()
        sections.append(SECTIONS[name](effort))
        print(as_text(sections[-1]))
        print(f"\n({time.monotonic() - start:.0f} s)\n", flush=True)
    print(summary(sections))
    if options.write:
        write_page(sections, server.describe())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compare comporta with its peers."
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"Run this section only: {', '.join(SECTIONS)}.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="Measure for about a minute, with less precision."
    )
    parser.add_argument(
        "--write", action="store_true", help="Write the results to docs/reference/benchmarks.md."
    )
    parser.add_argument(
        "--compare",
        metavar="REVISION",
        help="Measure the package of the working tree and of this git revision side by side, each with its "
        "own benchmarks, and print the ratio of their CPU times for each measurement.",
    )
    parser.add_argument(
        "--same-benchmarks",
        action="store_true",
        help="With --compare: measure both packages with the benchmarks of the working tree, such as a "
        "section that the revision does not have.",
    )
    options = parser.parse_args()
    unknown = [name for name in options.only or () if name not in SECTIONS and not options.compare]
    if unknown:
        parser.error(f"--only must be one of {', '.join(SECTIONS)}, got {unknown[0]!r:.100}")
    if options.write and (options.only or options.quick or options.compare):
        parser.error("--write needs a full run: remove --only, --quick and --compare")
    if options.same_benchmarks and not options.compare:
        parser.error("--same-benchmarks needs --compare")
    return options


if __name__ == "__main__":
    main()
