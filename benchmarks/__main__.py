"""The command line: ``python -m benchmarks [--only NAME] [--quick] [--write] [--compare REVISION]``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib import import_module

from benchmarks.compare import compare
from benchmarks.measure import Effort
from benchmarks.report import Section, as_text, summary, write_page


def _lazy(module: str, function: str) -> Callable[[Effort], Section]:
    """Return a section that imports its module when it runs.

    With ``--same-benchmarks`` the package may be older than some of the sections.
    """

    def section(effort: Effort) -> Section:
        run: Callable[[Effort], Section] = getattr(import_module(f"benchmarks.{module}"), function)
        return run(effort)

    return section


SECTIONS: dict[str, Callable[[Effort], Section]] = {
    "memory": _lazy("memory", "blocking"),
    "memory-async": _lazy("memory", "awaiting"),
    "paths": _lazy("paths", "run"),
    "shared": _lazy("shared", "one_process"),
    "shared-two": _lazy("shared", "two_processes"),
    "redis": _lazy("redis", "blocking"),
    "redis-async": _lazy("redis", "awaiting"),
    "leases": _lazy("lease", "run"),
    "breaker": _lazy("breakers", "blocking"),
    "breaker-async": _lazy("breakers", "awaiting"),
    "breaker-redis": _lazy("breakers", "shared_blocking"),
    "breaker-redis-async": _lazy("breakers", "shared_awaiting"),
    "composed": _lazy("composition", "composed"),
    "upstream": _lazy("composition", "upstream"),
    "transport": _lazy("transports", "run"),
    "cache": _lazy("cache", "hits"),
    "cache-sqlite": _lazy("cache", "rows"),
    "cache-postgres": _lazy("cache_postgres", "rows"),
    "cache-stampede": _lazy("cache", "stampede"),
    "cache-outage": _lazy("cache", "outage"),
    "channel": _lazy("pipeline", "channels"),
    "channel-threads": _lazy("pipeline", "threads"),
    "throttled": _lazy("pipeline", "throttled"),
    "path": _lazy("whole_path", "path"),
    "batch": _lazy("batch", "run"),
    "batch-workers": _lazy("batch_workers", "run"),
    "service": _lazy("service", "hits"),
    "dashboard": _lazy("dashboard", "run"),
    "service-loop": _lazy("loop", "steps"),
    "import": _lazy("startup", "run"),
    "footprint": _lazy("footprint", "run"),
    "many-keys": _lazy("many_keys", "run"),
    "accuracy": _lazy("accuracy", "run"),
    "budgets": _lazy("budgets", "run"),
    "fairness": _lazy("fairness", "run"),
    "latency": _lazy("latency", "run"),
    "outages": _lazy("outages", "run"),
    "degradation": _lazy("degradation", "run"),
    "refusals": _lazy("refusals", "run"),
    "scale": _lazy("scale", "run"),
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
        from benchmarks import server  # noqa: PLC0415 - as in _lazy()

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
