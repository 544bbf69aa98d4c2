"""``comporta sim``: plays a settings file with a simulated fleet, on virtual time.

It answers questions that a test environment answers too late: is my limit enough, what does an outage cost,
what do these retries do to a struggling upstream? The policies are the real ones; server, network, clocks,
callers and upstreams are simulated. Nothing is opened, and nothing outside this process is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from comporta.cli.console import json_option, new_table, print_json, print_table, printable_text
from comporta.settings import Settings, load_settings

if TYPE_CHECKING:
    from comporta.simulation.playback import PlaybackOptions
    from comporta.simulation.playback_record import UpstreamRecord

REPORT_FILE = "comporta-sim.html"
WORKERS_MAX = 5_000
CALLS_MAX = 20_000_000
"""The largest expected number of calls of a simulation."""

_EPILOG = (
    "FAULT is a kind with its start, its length and for some kinds a value: 'redis-hang@30s+5s', "
    "'redis-cut@30s+10s=50%', 'pncp-slow@1m+30s=2s'. The kinds are redis-hang, redis-crash, redis-wipe, "
    "redis-full, redis-read-only, redis-slow, redis-lossy, redis-cut, worker-pause, worker-kill, and for an "
    "upstream NAME-down, NAME-slow and NAME-refuses. Without a length, a fault lasts until the end."
)


@click.command(epilog=_EPILOG)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=4,
    show_default=True,
    help="Simulate this many workers.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=120.0,
    show_default=True,
    help="Simulate this many seconds.",
)
@click.option(
    "--demand",
    default="1/s",
    show_default=True,
    help="Let each worker make this many calls to each upstream, at random moments.",
)
@click.option(
    "--upstream",
    "upstreams",
    multiple=True,
    metavar="NAME:FIELDS",
    help="Describe an upstream: 'pncp:capacity=10/s,latency=0.3s'.",
)
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help="Add a fault: 'redis-hang@30s+5s'.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Use this seed; the same seed gives the same result.",
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False),
    default=REPORT_FILE,
    show_default=True,
    help="Write charts to this file: .html or .svg.",
)
@click.option("--no-report", is_flag=True, help="Write no charts.")
@json_option
def sim(file: str, report: str, no_report: bool, as_json: bool, **given: Any) -> None:
    """Simulate a fleet with the upstreams of a settings file.

    The command runs the real limits, breakers, retries and failover on virtual time: ten
    minutes of a fleet take seconds. It prints what happened to the calls and
    writes charts.

    \b
    capacity  calls per second that the upstream can process  [unlimited]
    latency   duration of a call that does not have to wait   [0.1s]
    errors    share of calls that end with status 500         [0%]
    queue     longest wait in the upstream; then 503          [5s]
    demand    calls of each worker                            [--demand]
    """  # noqa: D301 - \b makes click keep the line breaks
    if find_spec("greenlet") is None:
        raise click.ClickException("the simulation needs greenlet: pip install 'comporta[cli,simulation]'")
    settings = _load(file)
    path = None if no_report else _report_path(report)
    options = _options(settings, given)
    records = _play(settings, options)
    if as_json:
        print_json([record.summary() for record in records])
    else:
        print_table(_table(records))
    if path is not None:
        _write_report(path, records, options)


def _load(file: str) -> Settings:
    try:
        settings = load_settings(file)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None
    if not settings.upstreams:
        raise click.UsageError(f"{file} must have a table [upstreams.<name>], got none")
    return settings


def _report_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in (".html", ".svg"):
        raise click.UsageError(f"--report must end with .html or .svg, got {text!r:.100}")
    if not path.parent.is_dir():
        raise click.UsageError(f"--report {text}: the directory {path.parent} does not exist")
    return path


def _options(settings: Settings, given: dict[str, Any]) -> PlaybackOptions:
    """Return what to play; a mistake in an option is a usage error."""
    from comporta.cli.sim_options import parse_fault, parse_rate, parse_upstream  # noqa: PLC0415 - an extra
    from comporta.simulation.playback import PlaybackOptions, UpstreamFault  # noqa: PLC0415 - likewise
    from comporta.simulation.upstream_model import ModelOptions  # noqa: PLC0415 - likewise

    names, workers, seconds = list(settings.upstreams), given["workers"], given["seconds"]
    try:
        each = parse_rate("--demand", given["demand"])
        parsed = [parse_upstream(text, names) for text in given["upstreams"]]
        faults = [parse_fault(text, names, workers, seconds) for text in given["faults"]]
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    described = {upstream.name: upstream for upstream in parsed}
    rates = {name: described[name].demand if name in described else None for name in names}
    options = PlaybackOptions(
        workers=workers,
        seconds=seconds,
        seed=given["seed"],
        demand={name: each if rate is None else rate for name, rate in rates.items()},
        models={name: described[name].model if name in described else ModelOptions() for name in names},
        faults=[fault for fault in faults if not isinstance(fault, UpstreamFault)],
        upstream_faults=[fault for fault in faults if isinstance(fault, UpstreamFault)],
    )
    calls = sum(options.demand.values()) * workers * seconds
    if calls > CALLS_MAX:
        raise click.UsageError(f"a simulation must have at most {CALLS_MAX:,} calls, got about {calls:,.0f}")
    return options


def _play(settings: Settings, options: PlaybackOptions) -> list[UpstreamRecord]:
    from comporta.simulation.playback import play  # noqa: PLC0415 - an extra

    with _show_progress(options.seconds) as on_progress:
        try:
            return play(settings, options, on_progress)
        except (ValueError, TypeError) as error:
            raise click.UsageError(str(error)) from None


@contextmanager
def _show_progress(seconds: float) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error, if it is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where it is shown
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415 - likewise

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=1.0)
        yield lambda done: bar.update(
            task, completed=done, description=f"{done * seconds:.0f} of {seconds:.0f} s simulated"
        )


def _table(records: Sequence[UpstreamRecord]) -> Table:
    """Return one column per upstream: there are more numbers than upstreams."""
    from comporta.cli.sim_report import SUMMARY_TITLES, format_number  # noqa: PLC0415 - as above

    names = tuple(record.name for record in records)
    table = new_table("", *names, right=names)
    summaries = [record.summary() for record in records]
    for key, title in SUMMARY_TITLES.items():
        table.add_row(title, *(printable_text(format_number(key, summary[key])) for summary in summaries))
    return table


def _write_report(path: Path, records: Sequence[UpstreamRecord], options: PlaybackOptions) -> None:
    from comporta.cli.sim_report import render_html, render_svg  # noqa: PLC0415 - as above

    render = render_svg if path.suffix == ".svg" else render_html
    path.write_text(render(records, options), encoding="utf-8")
    click.echo(f"Charts: {path}", err=True)
