"""Makes room in a dictionary that is a cache of bounded size, a few entries at a time."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

_PARTS = 256


def drop_oldest(entries: dict[Any, Any], entries_max: int) -> None:
    """Delete a few of the oldest entries if there are ``entries_max``.

    Clearing a large cache at once would block its caller for tens of milliseconds. Several threads may call
    this at the same time, and add entries meanwhile.
    """
    if len(entries) >= entries_max:
        with suppress(RuntimeError):  # another thread added an entry, without CPython's global lock
            for key in list(islice(entries, max(1, entries_max // _PARTS))):
                entries.pop(key, None)
