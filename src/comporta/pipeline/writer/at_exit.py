"""Closes the writers that are still open when the program ends, so that their rows are written.

The threads of a writer are daemons, so a sink that hangs cannot keep the program alive. At exit this module
therefore waits for them, for at most :data:`EXIT_SECONDS` each.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Final

from comporta.events import publish
from comporta.flow import run
from comporta.weak_registry import WeakRegistry

if TYPE_CHECKING:
    from comporta.pipeline.writer.core import WriterCore

EXIT_SECONDS: Final = 30.0
"""How long the end of the program waits for each writer."""

_open_writers: WeakRegistry[WriterCore] = WeakRegistry()


def close_at_exit(core: WriterCore) -> None:
    """Close this writer at the end of the program, unless it has been closed by then."""
    if not _open_writers.live():
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open_writers.add(core)


def _close_all() -> None:
    for core in _open_writers.live():
        if core.abandoned:
            continue  # the caller that abandoned it has its rows, and it starts no further batch
        try:
            run(core.close_flow(EXIT_SECONDS))
        except Exception as error:
            unwritten = len(core.unwritten())
            publish("writer_left_open", core.name, f"{unwritten} rows are not written: {error}", "error")
