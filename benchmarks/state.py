"""A new ``shared://`` store for a section.

Uses only what every revision of the package has, so that ``--compare --same-benchmarks`` can use it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from comporta import TokenBucketLimiter

_numbers = count()


@contextmanager
def shared_state() -> Iterator[str]:
    """Yield the URL of a new shared store; close it and remove its files afterwards."""
    name = f"bench-{os.getpid()}-{next(_numbers)}"
    url = f"shared://{name}"
    try:
        yield url
    finally:
        TokenBucketLimiter("1/s", url).store.close()  # an open one would create its files again
        for path in shared_parent().glob(f"comporta-{os.geteuid()}-{name}-v*"):
            shutil.rmtree(path)


def shared_parent() -> Path:
    """Return the directory in which shared stores have theirs."""
    memory = Path("/dev/shm")  # noqa: S108 - where the package puts them, closed to other users
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
