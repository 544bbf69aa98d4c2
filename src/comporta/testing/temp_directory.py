"""Temporary directories that are removed when closed, garbage collected, or at the end of the program."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path


class TempDirectory:
    """A temporary directory. Unlike ``tempfile.TemporaryDirectory``, it does not warn if it is not closed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="comporta-"))
        self._finalizer = weakref.finalize(self, _remove, self.path, os.getpid())

    def close(self) -> None:
        """Remove the directory now."""
        self._finalizer()


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child that exits must not remove its parent's directory
        shutil.rmtree(path, ignore_errors=True)
