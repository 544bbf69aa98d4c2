"""The files of ``comporta run``: what it reads, what it writes, and that none of them is written over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from comporta.cli.run_address import fields_of
from comporta.cli.run_calls import COLUMNS
from comporta.errors import CheckpointError, ComportaError
from comporta.pipeline.runs.checkpoint import Checkpoint
from comporta.pipeline.runs.sources import FileSource
from comporta.pipeline.sinks import CsvSink, JsonLinesSink, Sink, SqliteSink

T = TypeVar("T")

LINE = "line"
KEY = (LINE, "input", "url")
"""What makes a row the same: a line alone would take that of another INPUT for one that is there already."""

DATABASES = (".db", ".sqlite", ".sqlite3")


class Input(FileSource):
    """INPUT, known also by the table its rows go to, if any: another one would lack the rows of before."""

    def __init__(self, path: str, form: str | None, table: str | None) -> None:
        super().__init__(path, form)
        self._table = table

    def identity(self) -> Mapping[str, Any] | None:
        """Say which file it is, and which table it is for."""
        known = super().identity()
        return None if known is None else {**known, "table": self._table}


@dataclass(frozen=True, slots=True)
class Files:
    """What a run reads and writes."""

    source: FileSource
    output: Path
    letters: Path
    checkpoint: Path | None


def files_of(given: str, options: dict[str, Any]) -> Files:
    """Find out which files are meant, and that none of them is written over."""
    output = Path(options["output"])
    table = options["table"] if output.suffix.lower() in DATABASES else None
    source = typed("INPUT", lambda: Input(given, options["form"], table))
    letters = Path(options["letters"] or f"{output}.dead.jsonl")
    if not source.rereadable:
        if options["resume"]:
            raise click.BadParameter(f"{given} cannot be read again: it is a pipe", param_hint="--resume")
        files = Files(source, output, letters, None)
    else:
        files = Files(source, output, letters, Path(f"{output}.{source.path.name}.checkpoint"))
        if source.path.resolve() in (output.resolve(), letters.resolve()):
            raise click.BadParameter(f"{given} is read: results and dead letters need other files")
    if output.resolve() == letters.resolve():  # each would wait for the other's lock
        raise click.BadParameter(
            f"must be another file than the results', got {str(letters)!r:.200}", param_hint="--dead-letters"
        )
    if not output.absolute().parent.is_dir():
        raise click.BadParameter(
            f"must be in a folder that is there, got {str(output)!r:.200}", param_hint="--output"
        )
    if output.exists() and not options["append"] and not (options["resume"] and _is_begun(files)):
        raise click.BadParameter(
            f"{output} is there already: --resume goes on with a run, --append adds to it",
            param_hint="--output",
        )
    if options["resume"] and not output.exists() and (written := _written_before(files)):
        raise click.BadParameter(
            f"{output} is gone, and {written:,} rows were written to it: put it back, or remove "
            f"{files.checkpoint} to begin anew",
            param_hint="--resume",
        )
    if _is_begun(files) and not options["resume"]:
        raise click.BadParameter(
            f"a run of these files was begun ({files.checkpoint}): --resume goes on with it, removing that "
            "file begins anew"
        )
    return files


def check_columns(source: FileSource, wanted: dict[str, list[str]]) -> None:
    """See that all lines have the columns one wants, where the first tells: a slip would cost every line."""
    if source.form not in ("lines", "csv") or not source.rereadable:
        return
    try:
        first = next((entry for entry in source.entries() if not entry.trouble), None)
    except ComportaError as error:
        raise click.ClickException(str(error)) from None
    known = None if first is None else fields_of(first.item)
    for option, columns in wanted.items():
        for column in columns:
            if known is not None and column not in known:
                shown = ", ".join(map(repr, list(known)[:20]))
                text = f"{source.path} has no column {column!r}, only {shown}"
                raise click.BadParameter(text[:500], param_hint=option)


def _is_begun(files: Files) -> bool:
    return files.checkpoint is not None and files.checkpoint.exists()


def _written_before(files: Files) -> int:
    """Return how many rows an earlier run has put into the output."""
    try:
        standing = None if files.checkpoint is None else Checkpoint(files.checkpoint).peek()
    except CheckpointError as error:
        raise click.ClickException(str(error)) from None
    return 0 if standing is None else standing.written


def sink_of(output: Path, table: str) -> Sink:
    """Return what writes the results, by the end of the file's name."""
    made: dict[str, Callable[[], Sink]] = {
        ".jsonl": lambda: JsonLinesSink(output, key=KEY),
        ".ndjson": lambda: JsonLinesSink(output, key=KEY),
        ".csv": lambda: CsvSink(output, columns=[LINE, *COLUMNS], key=KEY),
        **dict.fromkeys(
            DATABASES, lambda: SqliteSink(output, table=table, key=KEY, columns=[LINE, *COLUMNS])
        ),
    }
    make = made.get(output.suffix.lower())
    if make is None:
        raise click.BadParameter(
            f"must end in one of {', '.join(made)}, got {str(output)!r:.200}", param_hint="--output"
        )
    return typed("--output", make)


def typed(option: str, make: Callable[[], T]) -> T:
    """Make something of what was typed; what is wrong with it is a usage error."""
    try:
        return make()
    except OSError as error:
        raise click.BadParameter(why(error, "read"), param_hint=option) from None
    except (ValueError, TypeError, KeyError) as error:
        raise click.BadParameter(str(error.args[0]), param_hint=option) from None


def why(error: OSError, done: str) -> str:
    """Say which file cannot be used, and why."""
    return f"{error.filename or 'a file'} cannot be {done}: {error.strerror or error}"
