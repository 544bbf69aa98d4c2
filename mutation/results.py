"""What became of each mutant, kept in a file so that a run can be interrupted and resumed.

A result stays valid while the module and the tests that decided it are unchanged: the test that killed the
mutant, or else all tests that were tried. A time-out stays valid until the module changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from mutation.mutants import Mutant

KILLED, SURVIVED, TIMED_OUT, UNCOVERED = "killed", "survived", "timed out", "uncovered"


@dataclass(frozen=True)
class Result:
    """What became of a mutant; a digest identifies the tests that decided it."""

    mutant: str
    status: str
    tests: str
    seconds: float
    found_by: str = ""


def identity(mutant: Mutant) -> str:
    """Return what distinguishes a mutant from all others and stays the same while its module does."""
    text = "\0".join((mutant.module, mutant.original, mutant.mutated))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Results:
    """The results of earlier runs and of this one, in a file with one JSON object per line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text("utf-8").splitlines() if file.exists() else ()
        self._known = {result.mutant: result for result in map(_parsed, lines) if result is not None}

    def known(self, mutant: Mutant, tests: str, is_current: Callable[[str], bool]) -> Result | None:
        """Return the result of a mutant if it is still valid.

        ``tests`` is the digest of the tests that would be tried now, and ``is_current`` says whether a test
        is unchanged. A mutant that timed out is not tried again: these take the longest of all.
        """
        result = self._known.get(identity(mutant))
        if result is None:
            return None
        if result.status == KILLED:
            return result if is_current(result.found_by) else None
        return result if result.status == TIMED_OUT or result.tests == tests else None

    def add(self, result: Result) -> None:
        """Record a result at once."""
        self._known[result.mutant] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def _parsed(line: str) -> Result | None:
    """Return a result, or None for a line that was not written completely."""
    try:
        return Result(**json.loads(line))
    except ValueError:
        return None


def digest_of_tests(names: Iterable[str], digests: dict[str, str]) -> str:
    """Return a digest of some tests, by their names and the digests of their files."""
    text = "\n".join(f"{name} {digests[name.partition('::')[0]]}" for name in names)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
