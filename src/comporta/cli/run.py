"""``comporta run``: calls an endpoint for every line of a file under an upstream's policies.

A typical use: a hundred thousand rows overnight against a flaky, rate-limited API. A run can be interrupted
or killed and then resumed. Items that fail go to a dead-letter file, which is valid input for another run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn, cast

import click

from comporta.cli import EXIT_INTERRUPTED
from comporta.cli.completion import complete_state
from comporta.cli.run_files import (
    LINE,
    RunFiles,
    build_sink,
    check_columns,
    os_error_text,
    parse_option,
    resolve_files,
)
from comporta.cli.run_step import HttpStep
from comporta.cli.run_transport import BufferedTransport
from comporta.cli.run_url_template import UrlTemplate, fields_of
from comporta.cli.state_option import state_url
from comporta.errors import ComportaError
from comporta.limits.config import LimitConfig
from comporta.limits.overrides.record import rate_text
from comporta.pipeline.run.pipeline import WORKERS_MAX, Pipeline
from comporta.pipeline.run.progress import TerminalProgress, format_duration
from comporta.pipeline.run.report import COMPLETE, Report
from comporta.pipeline.run.sources import FORMS
from comporta.pipeline.sinks import JsonLinesSink, Sink
from comporta.retry.retry import Retry
from comporta.stores.registry import close_stores, open_store
from comporta.upstream.registry import Upstreams
from comporta.upstream.upstream import Upstream

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
EXIT_DEAD_LETTERS = 3

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_EPILOG = (
    "Exit status: 0 if every item succeeded; 3 if all items are done but some are dead letters; 130 if "
    "interrupted (continue with --resume); 1 if the run could not continue; 2 if an option is wrong."
)


@click.command(epilog=_EPILOG, short_help="Call an endpoint for every line of a file.")
@click.argument("input", metavar="INPUT", type=click.Path())
@click.option(
    "--url", required=True, help="Call this URL, with columns of the item in braces: 'https://host/{id}'."
)
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="Write the results to this file: .jsonl, .csv or .db (SQLite).",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    help="Read INPUT in this format.  [default: by the name of the file]",
)
@click.option(
    "--method", type=click.Choice(METHODS), default="GET", show_default=True, help="Use this HTTP method."
)
@click.option("--send-json", is_flag=True, help="Send each item as the request body, as JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Send this header.")
@click.option(
    "--header-env",
    "secrets",
    multiple=True,
    metavar="NAME=VARIABLE",
    help="Send header NAME with the value of environment variable VARIABLE.",
)
@click.option(
    "--accept",
    multiple=True,
    type=click.IntRange(300, 599),
    help="Treat this status as a result too, besides 2xx.",
)
@click.option("--config", type=click.Path(), help="Read the upstream from this settings file.")
@click.option(
    "--upstream",
    "name",
    metavar="NAME",
    help="Use the upstream of this name.  [default: the host of the URL]",
)
@click.option(
    "--limit",
    default="10/s",
    show_default=True,
    help="Make at most this many calls, together with all runs on the same STATE.",
)
@click.option(
    "--no-degradation",
    is_flag=True,
    help="Do not lower the limit when the server answers 429. A Retry-After still pauses all calls.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1, WORKERS_MAX),
    default=10,
    show_default=True,
    help="Make at most this many calls at the same time.",
)
@click.option(
    "--retries",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Retry a failed call this many times.",
)
@click.option(
    "--backoff",
    type=click.FloatRange(0, 60),
    default=2.0,
    show_default=True,
    help="Wait this many seconds before the first retry, and twice as long before each next one.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.01, 3600),
    default=30.0,
    show_default=True,
    help="Give up an attempt after this many seconds.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0, 86_400),
    default=3600.0,
    show_default=True,
    help="Wait at most this many seconds while the breaker is open or the server answers 429 or 503.",
)
@click.option(
    "--state",
    metavar="STATE",
    shell_complete=complete_state,
    help="Keep the limit in this state, as Upstream does.",
)
@click.option(
    "--key", metavar="COLUMN", help="Process items with the same value in COLUMN one after another."
)
@click.option(
    "--max-body",
    type=click.IntRange(1, 1 << 30),
    default=1 << 20,
    show_default=True,
    help="Reject answers longer than this many bytes.",
)
@click.option("--table", default="results", show_default=True, help="Write rows to this SQLite table.")
@click.option(
    "--dead-letters",
    "dead_letters",
    metavar="FILE",
    type=click.Path(),
    help="Write items that failed to this file.  [default: the name of the output + .dead.jsonl]",
)
@click.option("--resume", is_flag=True, help="Continue an earlier run of the same files.")
@click.option("--append", is_flag=True, help="Add rows to an output that exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def run(
    input: str,  # noqa: A002 - the help page calls it INPUT
    **options: Any,
) -> None:
    """Call an endpoint for every line of INPUT, and store the answers.

    INPUT is a text file (each line is the column "line"), a CSV file, JSON lines or dead letters; - reads
    standard input. Ctrl-C finishes the calls in flight and stops; a second Ctrl-C stops at once.
    """
    template = parse_option("--url", lambda: UrlTemplate(options["url"]))
    files = resolve_files(input, options)
    check_columns(
        files.source, {"--url": template.columns, "--key": [options["key"]] if options["key"] else []}
    )
    sink = build_sink(files.output, options["table"])
    headers = _parse_headers(options["headers"], options["secrets"])
    try:
        report = asyncio.run(_run_pipeline(files, template, sink, headers, options))
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"`comporta run` needs {error.name}: pip install 'comporta[httpx2]'"
        ) from None
    except (ComportaError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(os_error_text(error, "read or write")) from None
    finally:
        close_stores()
    _print_report(report, files, as_json=options["as_json"])


async def _run_pipeline(
    files: RunFiles, template: UrlTemplate, sink: Sink, headers: dict[str, str], options: dict[str, Any]
) -> Report:
    async with _open_client(template, headers, options) as (client, upstream):
        calls = HttpStep(
            client,
            template,
            method=options["method"],
            send_item=options["send_json"],
            accepted=frozenset(options["accept"]),
            patience=options["patience"],
            parse_json=isinstance(sink, JsonLinesSink),
        )
        is_terminal = sys.stderr.isatty()
        progress = TerminalProgress(lambda: _progress_suffix(upstream, calls)) if is_terminal else None
        pipeline = Pipeline(
            files.source,
            calls,
            sink,
            workers=options["in_flight"],
            key=_key_function(options["key"]),
            number=LINE,
            dead_letters=files.dead_letters,
            checkpoint=files.checkpoint,
            capacity=2 * options["in_flight"],
            progress=progress,
            name="run",
        )
        report = await pipeline.run(signals=True)
    report.retries = calls.retries
    return report


@asynccontextmanager
async def _open_client(
    template: UrlTemplate, headers: dict[str, str], options: dict[str, Any]
) -> AsyncIterator[tuple[Any, Upstream]]:
    import httpx2  # noqa: PLC0415 - an optional extra

    upstream = _build_upstream(template, options)
    buffered = BufferedTransport(
        httpx2.AsyncHTTPTransport(), frozenset(options["accept"]), options["max_body"], options["timeout"]
    )
    transport = upstream.transport(cast(httpx2.AsyncBaseTransport, buffered))
    async with httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=options["timeout"], follow_redirects=False
    ) as client:
        yield client, upstream
    await upstream.aclose()


def _build_upstream(template: UrlTemplate, options: dict[str, Any]) -> Upstream:
    """Return the upstream from the settings file if there is one, else from the options."""
    name = options["name"] or template.host.replace(":", "_")  # a name may not contain the colons of IPv6
    if options["config"] is not None:
        return parse_option("--config", lambda: Upstreams.from_file(options["config"])[name])
    limit = parse_option("--limit", lambda: LimitConfig.parse(options["limit"]))
    store = parse_option("--state", lambda: open_store(state_url(options["state"])))
    return parse_option(
        "--upstream",
        lambda: Upstream(
            name,
            limit,
            max_wait=options["patience"],
            retry=Retry(options["retries"], options["backoff"], budget=None),
            timeout=options["timeout"],
            degradation=not options["no_degradation"],
            state=store,
        ),
    )


def _parse_headers(plain: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    """Return the headers. Secrets come from the environment, because `ps` shows command lines."""
    headers: dict[str, str] = {}
    for text in plain:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(
                f"must have the form 'Name: value', got {text!r:.50}", param_hint="--header"
            )
        headers[name.strip()] = _check_header("--header", name.strip(), value.strip())
    for text in secrets:
        name, _, variable = text.partition("=")
        if variable not in os.environ:
            raise click.BadParameter(
                f"must name an environment variable that is set, as in Authorization=TOKEN, got {text!r:.99}",
                param_hint="--header-env",
            )
        headers[name] = _check_header("--header-env", name, os.environ[variable].strip())
    return headers


def _check_header(option: str, name: str, value: str) -> str:
    """Return the value if the header can be sent; no message shows it, because it may be a secret."""
    if not _HEADER_NAME.fullmatch(name):
        raise click.BadParameter(
            f"the name must consist of letters, digits and -, got {name!r:.50}", param_hint=option
        )
    if not (value.isascii() and value.isprintable()):
        raise click.BadParameter(
            f"the value of {name} must consist of printable ASCII characters", param_hint=option
        )
    return value


def _key_function(column: str | None) -> Callable[[Any], Any] | None:
    return None if column is None else lambda item: fields_of(item)[column]


def _progress_suffix(upstream: Upstream, calls: HttpStep) -> str:
    """Return the limit and the number of retries, for the progress line."""
    degradation = upstream.degradation
    rate = upstream.limiter.config.rate if degradation is None else degradation.current
    retries = f", {calls.retries:,} retries" if calls.retries else ""
    return f"limit {rate_text(rate)}/s{retries}"


def _print_report(report: Report, files: RunFiles, *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps(_summary(report, files)))
    else:
        for line in _report_lines(report, files):
            click.echo(line)
    if report.ended != COMPLETE:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(EXIT_DEAD_LETTERS if report.dead + report.dead_before else 0)


def _summary(report: Report, files: RunFiles) -> dict[str, Any]:
    return {
        "ended": report.ended,
        "done": report.done,
        "written": report.written,
        "dead": report.dead,
        "dead_before": report.dead_before,
        "skipped": report.skipped,
        "retries": report.retries,
        "seconds": round(report.seconds, 3),
        "output": str(files.output),
        "dead_letters": str(files.dead_letters),
        "checkpoint": None if files.checkpoint is None else str(files.checkpoint),
    }


def _report_lines(report: Report, files: RunFiles) -> list[str]:
    before = f", {report.skipped:,} done earlier" if report.skipped else ""
    took = f"{format_duration(report.seconds)} ({report.rate:,.1f}/s)"
    lines = [
        f"{report.ended.capitalize()}: {report.done:,} items in {took}{before}.",
        f"{files.output}: {report.written:,} rows"
        + (f", {report.retries:,} retries." if report.retries else "."),
    ]
    dead = report.dead + report.dead_before
    if dead:
        lines.append(f"{files.dead_letters}: {dead:,} dead letters; to retry them, use this file as INPUT.")
    if report.ended != COMPLETE and files.checkpoint is not None:
        lines.append("To continue, run the same command with --resume.")
    return lines
