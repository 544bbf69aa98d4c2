"""Identifies a run by a digest of its lines and its ``identity``. Reads sources, but no database.

Workers on several machines compute the same id from the same file, wherever it is. A name that was used for
other lines is refused, because some workers may still have the old file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from comporta.errors import PipelineError, SourceError
from comporta.pipeline.run.sources import LINE, EntrySource, SourceEntry
from comporta.pipeline.strict_json import dump_json

LINES_MAX: Final = 10_000_000
"""How many lines a run may have; each is a row of a table until it is done."""

ID_CHARS: Final = 16


class RunIdentity(NamedTuple):
    """The id of a run, the slot that its name takes, and the options that all its workers have in common."""

    run_id: str
    slot: str
    name: str
    identity: str
    options: str


def run_identity(
    name: str, lines_digest: str, identity: Mapping[str, str], options: Mapping[str, Any]
) -> RunIdentity:
    """Return the identity of a run."""
    listed = json.dumps(identity, sort_keys=True)
    run_id = _digest(f"{lines_digest} {listed}")[:ID_CHARS]
    slot = _digest(f"{name} {listed}")
    return RunIdentity(run_id, slot, name, listed, json.dumps(options, sort_keys=True))


def check_found(wanted: RunIdentity, found: list[tuple[str, str, str]]) -> None:
    """Raise unless one of the runs found is the wanted one, with the same options."""
    options = {run_id: options for run_id, _, options in found}
    if wanted.run_id not in options:
        [run_id] = options
        raise PipelineError(
            f"{wanted.name}: run {run_id} has this name and other lines; use the same file, give it another "
            f"name, or remove that run with `comporta runs remove {run_id}`"
        )
    theirs, ours = json.loads(options[wanted.run_id]), json.loads(wanted.options)
    for option in sorted({*theirs, *ours}):
        if theirs.get(option) != ours.get(option):
            raise PipelineError(
                f"{wanted.name}: all workers of run {wanted.run_id} need {option}={theirs.get(option)!r}, "
                f"got {ours.get(option)!r}"
            )


class LineDigest:
    """Hashes lines as they are read."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, entry: str) -> None:
        """Add a line; ``entry`` is its JSON."""
        self._hash.update(entry.encode() + b"\n")

    @property
    def text(self) -> str:
        """The digest of all lines so far."""
        return self._hash.hexdigest()


def digest_of(source: EntrySource) -> str:
    """Read a source and return the digest of its lines."""
    digest = LineDigest()
    for entry in limited_entries(source):
        digest.update(encode_entry(entry))
    return digest.text


def limited_entries(source: EntrySource) -> Iterator[SourceEntry]:
    """Read the entries of a source; raises after :data:`LINES_MAX`."""
    for entry in source.entries():
        if entry.position >= LINES_MAX:
            raise SourceError(f"a shared run may have at most {LINES_MAX:,} lines; split the file")
        yield entry


def encode_entry(entry: SourceEntry) -> str:
    """Return a line as JSON; raises for an item that JSON cannot represent."""
    try:
        return dump_json([entry.number, entry.error, entry.item])
    except (TypeError, ValueError, RecursionError) as error:
        raise SourceError(
            f"{entry.name()} of a shared run must be JSON (text, numbers, lists, objects): {error}"
        ) from None


def decode_entry(position: int, text: str) -> SourceEntry:
    """Return the line that ``encode_entry`` wrote."""
    number, error, item = json.loads(text)
    return SourceEntry(position, number, item, error, LINE)


def key_digest(key: object) -> str:
    """Return 32 characters for a key; raises for a key that JSON cannot represent."""
    return _digest(dump_json(key))[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
