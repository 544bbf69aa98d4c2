"""Checks whether the directories that the service writes to have room, by writing to them.

The check runs on a thread of its own and has a deadline: a disk that hangs blocks neither a health check nor
anything else.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

CHECK_BYTES: Final = 65_536
TIMEOUT_SECONDS: Final = 2.0


class DiskCheck:
    """Writes a small file to each directory; ``directories`` are by what they hold."""

    def __init__(self, directories: Mapping[str, Path]) -> None:
        self._directories = directories
        self._executor = ThreadPoolExecutor(1, "comporta-disk")

    async def run(self) -> list[str]:
        """Return a sentence for each directory that cannot be written."""
        if not self._directories:
            return []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await loop.run_in_executor(self._executor, self._check)
        except TimeoutError:
            return [f"the disk did not respond within {TIMEOUT_SECONDS:g} s"]

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown(wait=False)

    def _check(self) -> list[str]:
        reasons = []
        for what, directory in self._directories.items():
            try:
                _write(directory)
            except OSError as error:
                reasons.append(f"the disk of {what} cannot be written: {error.strerror}")
        return reasons


def _write(directory: Path) -> None:
    """Write a file that has no name, so that nothing is left behind."""
    if not directory.is_dir():
        return  # it is created when it is needed
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        file.write(bytes(CHECK_BYTES))
        os.fsync(file.fileno())
