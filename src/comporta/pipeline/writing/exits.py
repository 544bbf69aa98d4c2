"""Writers that are still open when the program ends: what they hold is written then.

Their threads do not keep a program alive, so that a sink that hangs cannot; somebody has to wait for them.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from comporta.events import publish
from comporta.flow import run

if TYPE_CHECKING:
    from comporta.pipeline.writing.gathering import Gathering

EXIT_SECONDS: Final = 30.0
"""How long the end of a program waits for each."""

_open: WeakSet[Gathering] = WeakSet()


def close_at_exit(gathering: Gathering) -> None:
    """Close this one at the end of the program, unless somebody does before."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    _open.add(gathering)


def _close_all() -> None:
    for gathering in list(_open):
        if gathering.abandoned:
            continue  # whoever gave it up has its rows, and begins no batch: there is nothing to wait for
        try:
            run(gathering.closing(EXIT_SECONDS))
        except Exception as error:
            left = len(gathering.unwritten())
            publish("writer_left_open", gathering.name, f"{left} rows are not written: {error}", "error")
