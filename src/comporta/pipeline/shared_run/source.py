"""``TableSource``: the lines of a file as a table that any number of workers share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from comporta.names import validate_name
from comporta.pipeline.run.sources import EntrySource, FileSource, source_of
from comporta.pipeline.shared_run.models import LEASE_SECONDS
from comporta.validators import require_number

LEASE_SECONDS_MIN = 1.0
LEASE_SECONDS_MAX = 3600.0
NAME_CHARS_MAX = 200


class RunLine(NamedTuple):
    """One line of a shared run, as a step with ``as_lines=True`` receives it.

    ``position`` counts from 0 without gaps, and ``number`` is the line in the file.
    """

    run_id: str
    position: int
    number: int
    item: Any

    @property
    def idempotency_key(self) -> str:
        """Text that identifies this line, the same for every attempt by any worker."""
        return f"{self.run_id}-{self.position}"


class TableSource:
    """A source whose lines are a table of ``database``, shared by all workers that pass the same one.

    - ``database``: the URL of the database in which the sink writes: ``sqlite:///…`` or ``postgresql://…``
    - ``source``: a ``Path``, a ``FileSource``, or an iterable of JSON values that can be read again
    - ``name``: the name of the run; by default the name of the file. Other lines under the same name and
      ``identity`` are refused
    - ``identity``: text that identifies the run besides its lines, such as a URL and a table
    - ``options``: values on which all workers have to agree; a worker with other values is refused
    - ``lease_seconds``: how long a worker may be silent, 1 to 3600 s, before others take over its lines
    - ``as_lines``: whether steps and keys receive a :class:`RunLine` instead of its item

    ``run_id`` identifies the run once a pipeline has joined it; it is empty before.
    """

    def __init__(
        self,
        database: str,
        source: Any,
        *,
        name: str | None = None,
        identity: Mapping[str, str] | None = None,
        options: Mapping[str, str | None] | None = None,
        lease_seconds: float = LEASE_SECONDS,
        as_lines: bool = False,
    ) -> None:
        self.database = database
        self.source = _rereadable(source)
        self.name = _name_of(self.source) if name is None else validate_name(name)
        self.run_identity = dict(identity or {})
        self.options = dict(options or {})
        self.lease_seconds = require_number(
            "lease_seconds", lease_seconds, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX, unit="seconds"
        )
        self.as_lines = as_lines
        self.run_id = ""

    def __repr__(self) -> str:
        return f"<TableSource {self.name!r}>"

    def item_of(self, run_id: str, position: int, number: int, item: Any) -> Any:
        """Return what a step receives for an item."""
        return RunLine(run_id, position, number, item) if self.as_lines else item


def _rereadable(given: Any) -> EntrySource:
    source = source_of(given)
    if isinstance(source, FileSource) and not source.rereadable:
        raise ValueError(
            f"source of a shared run must be a file, which every worker reads, got {given!r:.100}"
        )
    if hasattr(given, "__next__"):
        raise ValueError(f"source of a shared run must be read more than once, got {given!r:.100}")
    return source


def _name_of(source: EntrySource) -> str:
    path: os.PathLike[str] | None = getattr(source, "path", None)
    if path is None:
        raise ValueError("name is required for a shared run whose source is not a file")
    return Path(path).name[:NAME_CHARS_MAX]
