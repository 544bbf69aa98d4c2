"""``comporta run``: call an endpoint for every line of a file, by an upstream's rules, and keep what it says.

The everyday use: a flaky, limited interface, a hundred thousand rows, one night. It may be interrupted,
killed and gone on with; what cannot be done ends in a file that can be fed in again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import click

from comporta.cli import INTERRUPTED
from comporta.cli.completion import states
from comporta.cli.run_address import Address, fields_of
from comporta.cli.run_bodies import WholeAnswers
from comporta.cli.run_calls import Calls
from comporta.cli.run_files import LINE, Files, check_columns, files_of, sink_of, typed, why
from comporta.cli.states import state_url
from comporta.errors import ComportaError
from comporta.limits.config import LimitConfig
from comporta.pipeline.runs.pipeline import WORKERS_MAX, Pipeline
from comporta.pipeline.runs.progress import Terminal, duration
from comporta.pipeline.runs.report import COMPLETE, Report
from comporta.pipeline.runs.sources import FORMS
from comporta.pipeline.sinks import JsonLinesSink, Sink
from comporta.retry.retry import Retry
from comporta.stores.urls import forget_stores, open_store
from comporta.upstream.upstream import Upstream
from comporta.upstream.upstreams import Upstreams

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
DEAD_LETTERS_LEFT = 3

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_EPILOG = (
    "Exit status: 0 all is done; 3 all is done, but some of it are dead letters; 130 interrupted (--resume "
    "goes on); 1 it could not go on; 2 something is wrong with the options."
)


@click.command(epilog=_EPILOG, short_help="Call an endpoint for every line of a file.")
@click.argument("input", metavar="INPUT", type=click.Path())
@click.option("--url", required=True, help="What to call, columns in braces: 'https://host/{id}'.")
@click.option(
    "--output",
    required=True,
    metavar="FILE",
    type=click.Path(),
    help="For results: .jsonl, .csv or .db (SQLite).",
)
@click.option("--format", "form", type=click.Choice(list(FORMS)), help="Of INPUT; left out: by its name.")
@click.option("--method", type=click.Choice(METHODS), default="GET", show_default=True, help="Of each call.")
@click.option("--send-json", is_flag=True, help="Send each item as the body, as JSON.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Send this header.")
@click.option(
    "--header-env", "secrets", multiple=True, metavar="NAME=VARIABLE", help="Its value: a variable's."
)
@click.option("--accept", multiple=True, type=click.IntRange(300, 599), help="A status that is a result too.")
@click.option("--config", type=click.Path(), help="A settings file, with the upstream in it.")
@click.option("--upstream", "name", metavar="NAME", help="Its name; left out: the host of the URL.")
@click.option("--limit", default="10/s", show_default=True, help="Calls, all runs on one STATE together.")
@click.option(
    "--in-flight", type=click.IntRange(1, WORKERS_MAX), default=10, show_default=True, help="At once."
)
@click.option("--retries", type=click.IntRange(0, 100), default=3, show_default=True, help="For each call.")
@click.option(
    "--backoff", type=click.FloatRange(0, 60), default=2.0, show_default=True, help="Seconds, doubling."
)
@click.option(
    "--timeout", type=click.FloatRange(0.01, 3600), default=30.0, show_default=True, help="Seconds."
)
@click.option(
    "--patience",
    type=click.FloatRange(0, 86_400),
    default=3600.0,
    show_default=True,
    help="Seconds to wait out an open circuit, 429 or 503.",
)
@click.option(
    "--state", metavar="STATE", shell_complete=states, help="Where the limit is kept, as in Upstream."
)
@click.option("--key", metavar="COLUMN", help="One after another where this column is the same.")
@click.option(
    "--max-body", type=click.IntRange(1, 1 << 30), default=1 << 20, show_default=True, help="Bytes."
)
@click.option("--table", default="results", show_default=True, help="Of SQLite.")
@click.option(
    "--dead-letters",
    "letters",
    metavar="FILE",
    type=click.Path(),
    help="Left out: the output's name + .dead.jsonl.",
)
@click.option("--resume", is_flag=True, help="Go on where an earlier run of the same files ended.")
@click.option("--append", is_flag=True, help="Add to an output that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON, for scripts.")
def run(
    input: str,  # noqa: A002 - it is what the page calls it
    **options: Any,
) -> None:
    """Call an endpoint for every line of INPUT, and keep the answers.

    INPUT is a file of lines (a column called line), CSV, JSON lines or dead letters; - is the standard
    input. Ctrl-C finishes what is under way, a second one stops.
    """
    address = typed("--url", lambda: Address(options["url"]))
    files = files_of(input, options)
    check_columns(
        files.source, {"--url": address.columns, "--key": [options["key"]] if options["key"] else []}
    )
    sink = sink_of(files.output, options["table"])
    headers = _headers(options["headers"], options["secrets"])
    try:
        report = asyncio.run(_ran(files, address, sink, headers, options))
    except ModuleNotFoundError as error:
        raise click.ClickException(f"calling needs {error.name}: pip install 'comporta[httpx2]'") from None
    except (ComportaError, ImportError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(why(error, "read or written")) from None
    finally:
        forget_stores()
    _tell(report, files, as_json=options["as_json"])


async def _ran(
    files: Files, address: Address, sink: Sink, headers: dict[str, str], options: dict[str, Any]
) -> Report:
    async with _client(address, headers, options) as (client, upstream):
        calls = Calls(
            client,
            address,
            method=options["method"],
            send_item=options["send_json"],
            accepted=frozenset(options["accept"]),
            patience=options["patience"],
            parsed=isinstance(sink, JsonLinesSink),
        )
        pipeline = Pipeline(
            files.source,
            calls,
            sink,
            workers=options["in_flight"],
            key=_key(options["key"]),
            number=LINE,
            dead_letters=files.letters,
            checkpoint=files.checkpoint,
            capacity=2 * options["in_flight"],
            progress=Terminal(lambda: _told_of(upstream, calls)) if sys.stderr.isatty() else None,
            name="run",
        )
        report = await pipeline.run(signals=True)
    report.retries = calls.retries
    return report


@asynccontextmanager
async def _client(
    address: Address, headers: dict[str, str], options: dict[str, Any]
) -> AsyncIterator[tuple[Any, Upstream]]:
    import httpx2  # noqa: PLC0415 - an extra of its own

    upstream = _upstream(address, options)
    whole = WholeAnswers(
        httpx2.AsyncHTTPTransport(), frozenset(options["accept"]), options["max_body"], options["timeout"]
    )
    transport = upstream.transport(whole)
    async with httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=options["timeout"], follow_redirects=False
    ) as client:
        yield client, upstream
    await upstream.aclose()


def _upstream(address: Address, options: dict[str, Any]) -> Upstream:
    """Return the upstream: from a file, where there is one, else as the options say."""
    name = options["name"] or address.host.replace(":", "_")  # of IPv6, which is no name
    if options["config"] is not None:
        return typed("--config", lambda: Upstreams.from_file(options["config"])[name])
    limit = typed("--limit", lambda: LimitConfig.parse(options["limit"]))
    store = typed("--state", lambda: open_store(state_url(options["state"])))
    return typed(
        "--upstream",
        lambda: Upstream(
            name,
            limit,
            max_wait=options["patience"],
            retry=Retry(options["retries"], options["backoff"], budget=None),
            timeout=options["timeout"],
            state=store,
        ),
    )


def _headers(plain: tuple[str, ...], secrets: tuple[str, ...]) -> dict[str, str]:
    """Return the headers; secrets come from the environment, where no list of processes shows them."""
    found: dict[str, str] = {}
    for text in plain:
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise click.BadParameter(f"must look like 'Name: value', got {text!r:.50}", param_hint="--header")
        found[name.strip()] = _header("--header", name.strip(), value.strip())
    for text in secrets:
        name, _, variable = text.partition("=")
        if variable not in os.environ:
            raise click.BadParameter(
                f"must name a variable that is set, as in Authorization=TOKEN, got {text!r:.100}",
                param_hint="--header-env",
            )
        found[name] = _header("--header-env", name, os.environ[variable].strip())
    return found


def _header(option: str, name: str, value: str) -> str:
    """Return the value of a header that can be sent; a value may be a secret, and is not shown."""
    if not _HEADER_NAME.fullmatch(name):
        raise click.BadParameter(
            f"must have a name of letters, digits and -, got {name!r:.50}", param_hint=option
        )
    if not (value.isascii() and value.isprintable()):
        raise click.BadParameter(
            f"{name} must have a value of printable ASCII characters; it has others", param_hint=option
        )
    return value


def _key(column: str | None) -> Callable[[Any], Any] | None:
    return None if column is None else lambda item: fields_of(item)[column]


def _told_of(upstream: Upstream, calls: Calls) -> str:
    """Return what only the upstream knows, for people who watch."""
    degradation = upstream.parts.degradation
    rate = upstream.limiter.config.rate if degradation is None else degradation.current
    retries = f", {calls.retries:,} retries" if calls.retries else ""
    return f"limit {rate:g}/s{retries}"


def _tell(report: Report, files: Files, *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps(_summary(report, files)))
    else:
        for line in _lines(report, files):
            click.echo(line)
    if report.ended != COMPLETE:
        sys.exit(INTERRUPTED)
    sys.exit(DEAD_LETTERS_LEFT if report.dead + report.dead_before else 0)


def _summary(report: Report, files: Files) -> dict[str, Any]:
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
        "dead_letters": str(files.letters),
        "checkpoint": None if files.checkpoint is None else str(files.checkpoint),
    }


def _lines(report: Report, files: Files) -> list[str]:
    before = f", {report.skipped:,} were done before" if report.skipped else ""
    took = f"{duration(report.seconds)} ({report.rate:,.1f}/s)"
    lines = [
        f"{report.ended.capitalize()}: {report.done:,} items in {took}{before}.",
        f"{files.output}: {report.written:,} rows"
        + (f", {report.retries:,} retries." if report.retries else "."),
    ]
    dead = report.dead + report.dead_before
    if dead:
        lines.append(f"{files.letters}: {dead:,} dead letters; feed them in again as INPUT.")
    if report.ended != COMPLETE and files.checkpoint is not None:
        lines.append("The same command with --resume goes on.")
    return lines
