"""``comporta run``: calls an endpoint for every line of a file under an upstream's policies.

A typical use: a hundred thousand rows overnight against a flaky, rate-limited API. A run can be interrupted
or killed and then resumed. Items that fail go to a dead-letter file, which is valid input for another run.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import click

from comporta.breaker.config import BreakerConfig
from comporta.cli.completion import complete_state
from comporta.cli.console import clock_time
from comporta.cli.run_files import check_columns, os_error_text, parse_option
from comporta.cli.run_plan import LOCAL_STATE_WARNING, RunPlan, plan_file_run, plan_shared_run
from comporta.cli.run_report import print_report
from comporta.cli.run_step import HttpStep
from comporta.cli.run_transport import BufferedTransport
from comporta.cli.run_url_template import UrlTemplate
from comporta.cli.state_option import state_url
from comporta.errors import ComportaError
from comporta.events import Event, listen
from comporta.limits.config import LimitConfig
from comporta.limits.overrides.record import rate_text
from comporta.pipeline.run.pipeline import WORKERS_MAX, Pipeline
from comporta.pipeline.run.progress import TerminalProgress
from comporta.pipeline.run.report import Report, quantity
from comporta.pipeline.run.sources import FORMS
from comporta.pipeline.sinks import JsonLinesSink
from comporta.retry.retry import Retry
from comporta.stores.registry import close_stores, open_store
from comporta.upstream.registry import Upstreams
from comporta.upstream.upstream import Upstream

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")

BREAKER = BreakerConfig(cooldown_seconds=1.0, cooldown_factor=2.0, cooldown_max_seconds=30.0)
"""A run can only wait for the server, so it probes soon at first, and less often over time."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_EPILOG = (
    "Exit status: 0 if every item succeeded; 3 if all items are done but some are dead letters; 130 if "
    "interrupted (continue with --resume; a shared run with the same command); 1 if the run could not "
    "continue; 2 if an option is wrong."
)


@click.command(epilog=_EPILOG, short_help="Call an endpoint for every line of a file.")
@click.argument("input", metavar="INPUT", type=click.Path())
@click.option(
    "--url", required=True, help="Call this URL, with columns of the item in braces: 'https://host/{id}'."
)
@click.option(
    "--output",
    required=True,
    metavar="FILE|URL",
    type=click.Path(),
    help="Write the results to this file (.jsonl, .csv or .db), or with --shared to this database.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FORMS)),
    help="Read INPUT in this format.  [default: by the suffix of the file name]",
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
@click.option(
    "--config",
    type=click.Path(),
    help="Read the upstream from this settings file, with its limits and retries.",
)
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
    help="Abandon an attempt after this many seconds.",
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
@click.option("--table", default="results", show_default=True, help="Write rows to this table of a database.")
@click.option(
    "--dead-letters",
    "dead_letters",
    metavar="FILE",
    type=click.Path(),
    help="Write items that failed to this file.  [default: the name of the output + .dead.jsonl]",
)
@click.option(
    "--shared",
    is_flag=True,
    help="Share the run with all processes that start the same command, on any machine.",
)
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    help="Take over the lines of a worker after this many seconds of silence; needs --shared.  [default: 30]",
)
@click.option(
    "--idempotency-key",
    is_flag=True,
    help="Send a header Idempotency-Key, the same for every attempt of a line; needs --shared.",
)
@click.option(
    "--yes", is_flag=True, help="Make the same call for every item if the URL has no column in braces."
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
    if not (template.columns or options["send_json"] or options["yes"]):
        raise click.BadParameter(
            "has no column in braces, so every item of INPUT would make the same call; add a column, such as "
            "{line}, or use --yes",
            param_hint="--url",
        )
    plan = plan_shared_run(input, options) if options["shared"] else plan_file_run(input, options)
    check_columns(plan.file, {"--url": template.columns, "--key": [options["key"]] if options["key"] else []})
    headers = _parse_headers(options["headers"], options["secrets"])
    try:
        report = asyncio.run(_run_pipeline(plan, template, headers, options))
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
    print_report(report, plan, as_json=options["as_json"])


async def _run_pipeline(
    plan: RunPlan, template: UrlTemplate, headers: dict[str, str], options: dict[str, Any]
) -> Report:
    async with _open_client(template, headers, options) as (client, upstream):
        if plan.warns_of(upstream.store.address):
            click.echo(LOCAL_STATE_WARNING, err=True)
        calls = HttpStep(
            client,
            upstream,
            template,
            method=options["method"],
            send_item=options["send_json"],
            accepted=frozenset(options["accept"]),
            patience=options["patience"],
            parse_json=isinstance(plan.sink, JsonLinesSink),
            has_idempotency_key=options["idempotency_key"],
        )
        is_terminal = sys.stderr.isatty()
        progress = TerminalProgress(lambda: _progress_suffix(upstream, calls)) if is_terminal else None
        pipeline = Pipeline(
            plan.source,
            plan.step_of(calls),
            plan.sink,
            workers=options["in_flight"],
            capacity=2 * options["in_flight"],
            progress=progress,
            name="run",
            **plan.pipeline_options,
        )
        stop_listening = listen(lambda event: _announce_drain(event, calls, progress))
        try:
            report = await pipeline.run(signals=True)
        finally:
            stop_listening()
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
            breaker=BREAKER,
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


def _announce_drain(event: Event, calls: HttpStep, progress: TerminalProgress | None) -> None:
    """Say what the first Ctrl-C does, as soon as it is pressed."""
    if event.kind == "pipeline_draining":
        begun = quantity(calls.items_begun, "item")
        text = f"Finishing {begun} in progress; press Ctrl-C again to stop at once."
        if progress is None:
            click.echo(text, err=True)
        else:
            progress.print(text)


def _progress_suffix(upstream: Upstream, calls: HttpStep) -> str:
    """Return the limit and the number of retries, or why no call is made, for the progress line."""
    breaker = upstream.breaker
    if breaker is not None and breaker.is_degraded:
        until = breaker.degraded_until
        return "circuit open" if until is None else f"circuit open until {clock_time(until)}"
    degradation = upstream.degradation
    rate = upstream.limiter.config.rate if degradation is None else degradation.current
    retries = f", {quantity(calls.retries, 'retry', 'retries')}" if calls.retries else ""
    return f"limit {rate_text(rate)}/s{retries}"
