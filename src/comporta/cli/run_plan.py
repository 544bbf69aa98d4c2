"""What ``comporta run`` reads and writes: files of one process, or the database of a shared run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import click

from comporta.cli.run_files import LINE, RunFiles, build_sink, parse_option, resolve_files
from comporta.cli.run_step import COLUMNS, HttpStep
from comporta.cli.run_url_template import fields_of
from comporta.cli.state_option import display_url
from comporta.database.urls import sqlite_path, without_options
from comporta.pipeline.run.report import quantity
from comporta.pipeline.run.sources import FileSource
from comporta.pipeline.shared_run import RunLine, TableSource
from comporta.pipeline.shared_run.models import LEASE_SECONDS
from comporta.pipeline.sinks import Sink, SqliteSink
from comporta.retry.retry import Retry

SHARED_KEY = ("run", "position")
SHARED_COLUMNS = (*SHARED_KEY, LINE, *COLUMNS)

SINK_RETRY = Retry(6, 1.0, budget=None)
"""Retries of a batch, for about a minute: a database that restarts does not end a run."""

MAX_DELAY_SECONDS = 0.5
"""How long a row waits for its batch: after a kill, calls whose rows were not written are repeated."""

LOCAL_STATE_WARNING = (
    "Warning: the state is on this machine, so processes on other machines do not share its limit. To share "
    "it, use --state redis://HOST:6379/0."
)

_LOCAL_SCHEMES = ("memory", "shared")
_REFUSED_OPTIONS = {
    "resume": ("--resume", "there is nothing to resume: start the same command again"),
    "append": ("--append", "the rows of several runs are in one table anyway"),
    "dead_letters": ("--dead-letters", "they are in the database: see `comporta runs dead`"),
}


class RunPlan(Protocol):
    """What a run reads and writes, and how its summary describes that."""

    file: FileSource
    sink: Sink
    output: str
    pipeline_options: dict[str, Any]
    skipped_text: str
    continue_text: str

    @property
    def source(self) -> FileSource | TableSource:
        """The source of the pipeline: the file itself, or a table with its lines."""

    def step_of(self, calls: HttpStep) -> Callable[[Any], Any]:
        """Return the step for the items of the source."""

    def warns_of(self, state: str) -> bool:
        """Return whether limits in this state do not bind all processes of the run."""

    def dead_letters_text(self, count: int) -> str:
        """Return a sentence that says where the dead letters are."""

    def summary(self) -> dict[str, Any]:
        """Return what the JSON summary says about the output."""


class FileRun:
    """A run of one process that writes files."""

    skipped_text = "done earlier"

    def __init__(self, files: RunFiles, sink: Sink, key: str | None) -> None:
        self._files = files
        self.source = self.file = files.source
        self.sink = sink
        self.output = str(files.output)
        self.pipeline_options = {
            "key": None if key is None else lambda item: fields_of(item)[key],
            "number": LINE,
            "dead_letters": files.dead_letters,
            "checkpoint": files.checkpoint,
        }
        has_checkpoint = files.checkpoint is not None
        self.continue_text = "To continue, run the same command with --resume." if has_checkpoint else ""

    def step_of(self, calls: HttpStep) -> HttpStep:
        """Return the calls themselves."""
        return calls

    def warns_of(self, state: str) -> bool:
        """Return false: there is one process."""
        return False

    def dead_letters_text(self, count: int) -> str:
        """Return a sentence that says where the dead letters are."""
        them = "it" if count == 1 else "them"
        text = quantity(count, "dead letter")
        return f"{self._files.dead_letters}: {text}; to retry {them}, use this file as INPUT."

    def summary(self) -> dict[str, Any]:
        """Return the files."""
        checkpoint = self._files.checkpoint
        return {
            "output": self.output,
            "dead_letters": str(self._files.dead_letters),
            "checkpoint": None if checkpoint is None else str(checkpoint),
        }


class SharedRun:
    """A run of any number of processes that write to one database."""

    skipped_text = "done by other processes"
    continue_text = "To continue, run the same command again."

    def __init__(self, file: FileSource, source: TableSource, sink: Sink, options: dict[str, Any]) -> None:
        self.file = file
        self.source = source
        self.sink = sink
        self._database = display_url(source.database)
        self._is_local = source.database.startswith("sqlite:")
        self._sends_key = options["idempotency_key"]
        self.output = f"{self._database}, table {options['table']}"
        key = options["key"]
        self.pipeline_options = {
            "key": None if key is None else lambda line: fields_of(line.item)[key],
            "sink_retry": SINK_RETRY,
            "max_delay": MAX_DELAY_SECONDS,
        }

    def step_of(self, calls: HttpStep) -> SharedHttpStep:
        """Return the calls, with the run and the line in each row."""
        return SharedHttpStep(calls, sends_key=self._sends_key)

    def warns_of(self, state: str) -> bool:
        """Return whether the database is on a server, and the state on this machine."""
        return not self._is_local and urlsplit(state).scheme in _LOCAL_SCHEMES

    def dead_letters_text(self, count: int) -> str:
        """Return a sentence that says how to list the dead letters."""
        them, text = "it" if count == 1 else "them", quantity(count, "dead letter")
        return f"{text}; to list {them}: comporta runs dead {self.source.run_id} --database URL"

    def summary(self) -> dict[str, Any]:
        """Return the run and its database."""
        return {"run": self.source.run_id, "output": self.output}


class SharedHttpStep:
    """Makes the call for a line of a shared run, and returns a row that identifies the line."""

    def __init__(self, calls: HttpStep, *, sends_key: bool) -> None:
        self._calls = calls
        self._sends_key = sends_key

    async def __call__(self, line: RunLine) -> Mapping[str, Any]:
        """Make the call and return the row."""
        headers = {"Idempotency-Key": line.idempotency_key} if self._sends_key else {}
        row = await self._calls.call(line.item, headers)
        return {"run": line.run_id, "position": line.position, LINE: line.number, **row}


def plan_file_run(given: str, options: dict[str, Any]) -> RunPlan:
    """Return the plan of a run that writes files."""
    for name, option in (("lease", "--lease"), ("idempotency_key", "--idempotency-key")):
        if options[name]:
            raise click.BadParameter("needs --shared", param_hint=option)
    if "://" in options["output"]:
        raise click.BadParameter(
            f"must be a file without --shared, got {display_url(options['output'])!r:.200}",
            param_hint="--output",
        )
    files = resolve_files(given, options)
    return FileRun(files, build_sink(files.output, options["table"]), options["key"])


def plan_shared_run(given: str, options: dict[str, Any]) -> RunPlan:
    """Return the plan of a shared run."""
    for name, (option, reason) in _REFUSED_OPTIONS.items():
        if options[name]:
            raise click.BadParameter(f"cannot be used with --shared: {reason}", param_hint=option)
    sink = _build_shared_sink(options["output"], options["table"])
    file = parse_option("INPUT", lambda: FileSource(given, options["form"]))
    source = parse_option(
        "INPUT",
        lambda: TableSource(
            options["output"],
            file,
            identity={"url": options["url"], "method": options["method"], "table": options["table"]},
            options={"--key": options["key"]},
            lease_seconds=options["lease"] or LEASE_SECONDS,
            as_lines=True,
        ),
    )
    return SharedRun(file, source, sink, options)


def _build_shared_sink(url: str, table: str) -> Sink:
    scheme, separator, _ = url.partition("://")
    path = sqlite_path(url) if scheme == "sqlite" else None
    if not separator or (path is None and scheme not in ("postgresql", "postgres")):
        raise click.BadParameter(
            "must be sqlite:///FILE or postgresql://USER@HOST/DATABASE with --shared, "
            f"got {display_url(url) if separator else url!r:.200}",
            param_hint="--output",
        )
    if path is not None:
        return parse_option(
            "--output", lambda: SqliteSink(path, table=table, key=SHARED_KEY, columns=SHARED_COLUMNS)
        )
    if urlsplit(url).password or "password" in dict(parse_qsl(urlsplit(url).query)):
        raise click.BadParameter(
            "must not contain a password, which other users could see; set PGPASSWORD in the environment",
            param_hint="--output",
        )
    return parse_option("--output", lambda: _postgres_sink(without_options(url), table))


def _postgres_sink(url: str, table: str) -> Sink:
    from comporta.pipeline.sinks.postgres import PostgresSink  # noqa: PLC0415 - an optional extra

    return PostgresSink(url, table=table, key=SHARED_KEY, columns=SHARED_COLUMNS)
