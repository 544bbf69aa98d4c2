"""The files of ``comporta run``: resolves which it reads and writes, and protects existing ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from comporta.cli.run_step import COLUMNS
from comporta.cli.run_url_template import fields_of
from comporta.errors import CheckpointError, ComportaError
from comporta.pipeline.run.checkpoint import Checkpoint
from comporta.pipeline.run.sources import FileSource
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, Sink, SqliteSink

T = TypeVar("T")

LINE = "line"
ROW_KEY = (LINE, "input", "url")
"""The columns that identify a row. The line alone would confuse rows of different INPUT files."""

DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


class InputFile(FileSource):
    """INPUT, whose identity includes the options that a resumed run must not change.

    With another table or URL, the output would mix the rows of both; with other dead letters, some rows would
    be repeated.
    """

    def __init__(self, path: str, form: str | None, fixed_options: Mapping[str, str | None]) -> None:
        super().__init__(path, form)
        self._fixed_options = fixed_options

    def identity(self) -> Mapping[str, Any] | None:
        """Return what identifies the file and its run in a checkpoint."""
        identity = super().identity()
        return None if identity is None else {**identity, **self._fixed_options}


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files that a run reads and writes."""

    source: FileSource
    output: Path
    dead_letters: Path
    checkpoint: Path | None


def resolve_files(given: str, options: dict[str, Any]) -> RunFiles:
    """Return the files of a run; raise a usage error if one of them would be overwritten."""
    output = Path(options["output"])
    table = options["table"] if output.suffix.lower() in DATABASE_SUFFIXES else None
    dead_letters = Path(options["dead_letters"] or f"{output}.dead.jsonl")
    fixed_options = {
        "--table": table,
        "--url": options["url"],
        "--method": options["method"],
        "--dead-letters": str(dead_letters.absolute()),
    }
    source = parse_option("INPUT", lambda: InputFile(given, options["form"], fixed_options))
    if options["resume"] and not source.rereadable:
        raise click.BadParameter(f"cannot resume {given}: it is a pipe", param_hint="--resume")
    checkpoint = Path(f"{output}.{source.path.name}.checkpoint") if source.rereadable else None
    files = RunFiles(source, output, dead_letters, checkpoint)
    _check_paths(files, given)
    _check_existing(files, resume=options["resume"], append=options["append"])
    return files


def _check_paths(files: RunFiles, given: str) -> None:
    """Check that the files differ, and that the directory of the output exists."""
    output, dead_letters = files.output.resolve(), files.dead_letters.resolve()
    if files.source.rereadable and files.source.path.resolve() in (output, dead_letters):
        raise click.BadParameter(f"{given} is INPUT: results and dead letters need other files")
    if output == dead_letters:  # each would wait for the other's lock
        raise click.BadParameter(
            f"must not be the same file as --output, got {str(files.dead_letters)!r:.200}",
            param_hint="--dead-letters",
        )
    if not files.output.absolute().parent.is_dir():
        raise click.BadParameter(
            f"must be in an existing directory, got {str(files.output)!r:.200}", param_hint="--output"
        )


def _check_existing(files: RunFiles, *, resume: bool, append: bool) -> None:
    """Check that an existing output or checkpoint is wanted, and that a resumed run has its output."""
    output, exists = files.output, files.output.exists()
    if exists and not append and not (resume and _has_checkpoint(files)):
        what_to_do = (
            f", but {files.checkpoint} does not, so there is no run to resume: write to another file"
            if resume
            else ": use --resume to continue a run"
        )
        raise click.BadParameter(
            f"{output} already exists{what_to_do}, or use --append to add rows", param_hint="--output"
        )
    if resume and not exists and (written := _rows_written(files)):
        raise click.BadParameter(
            f"{output} is missing, but {written:,} rows were written to it: restore it, or remove "
            f"{files.checkpoint} to start over",
            param_hint="--resume",
        )
    if _has_checkpoint(files) and not resume:
        raise click.BadParameter(
            f"an earlier run of these files left the checkpoint {files.checkpoint}: use --resume to "
            "continue that run, or remove the checkpoint to start over"
        )


def check_columns(source: FileSource, required: dict[str, list[str]]) -> None:
    """Check the columns against the first line: a typo would turn every line into a dead letter."""
    if source.form not in ("lines", "csv") or not source.rereadable:
        return
    try:
        first = next((entry for entry in source.entries() if not entry.error), None)
    except ComportaError as error:
        raise click.ClickException(str(error)) from None
    fields = None if first is None else fields_of(first.item)
    for option, columns in required.items():
        for column in columns:
            if fields is not None and column not in fields:
                available = ", ".join(map(repr, list(fields)[:20]))
                text = f"{source.path} has no column {column!r}, only {available}"
                raise click.BadParameter(text[:500], param_hint=option)


def _has_checkpoint(files: RunFiles) -> bool:
    return files.checkpoint is not None and files.checkpoint.exists()


def _rows_written(files: RunFiles) -> int:
    """Return how many rows an earlier run has written to the output."""
    try:
        progress = None if files.checkpoint is None else Checkpoint(files.checkpoint).peek()
    except CheckpointError as error:
        raise click.ClickException(str(error)) from None
    return 0 if progress is None else progress.written


def build_sink(output: Path, table: str) -> Sink:
    """Return the sink for the suffix of the output."""
    factories: dict[str, Callable[[], Sink]] = {
        ".jsonl": lambda: JsonLinesSink(output, key=ROW_KEY),
        ".ndjson": lambda: JsonLinesSink(output, key=ROW_KEY),
        ".csv": lambda: CsvSink(output, columns=[LINE, *COLUMNS], key=ROW_KEY),
        **dict.fromkeys(
            DATABASE_SUFFIXES, lambda: SqliteSink(output, table=table, key=ROW_KEY, columns=[LINE, *COLUMNS])
        ),
    }
    make = factories.get(output.suffix.lower())
    if make is None:
        raise click.BadParameter(
            f"must end in one of {', '.join(factories)}, got {str(output)!r:.200}", param_hint="--output"
        )
    return parse_option("--output", make)


def parse_option(option: str, make: Callable[[], T]) -> T:
    """Build a value from an option; report an error in it as a usage error."""
    try:
        return make()
    except OSError as error:
        raise click.BadParameter(os_error_text(error, "read"), param_hint=option) from None
    except (ValueError, TypeError, KeyError) as error:
        raise click.BadParameter(str(error.args[0]), param_hint=option) from None


def os_error_text(error: OSError, verb: str) -> str:
    """Return a sentence that says which file cannot be used, and why."""
    return f"cannot {verb} {error.filename or 'a file'}: {error.strerror or error}"
