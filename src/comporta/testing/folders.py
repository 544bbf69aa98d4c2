"""Folders that are gone when their owner is: closed, garbage, or at the end of the program."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class Folder:
    """A temporary folder. ``tempfile`` has one too, but complains when it is not closed by hand."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="comporta-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def close(self) -> None:
        """Remove it now."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child that ends must not take it from its parent
        shutil.rmtree(path, ignore_errors=True)
