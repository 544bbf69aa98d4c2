"""Survivors that are accepted: ``accepted.toml`` gives the reason for each of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutation.mutants import Mutant

FILE = Path(__file__).with_name("accepted.toml")


@dataclass(frozen=True)
class Accepted:
    """A survivor by its module, its function and its change, and why no test finds it."""

    module: str
    function: str
    removed: str
    added: str
    reason: str

    def matches(self, mutant: Mutant) -> bool:
        """Return whether this entry accepts the mutant."""
        return (self.module, self.function, self.removed, self.added) == (
            mutant.module,
            mutant.place.function,
            *mutant.removed_and_added,
        )


def load_accepted(file: Path = FILE) -> list[Accepted]:
    """Return the accepted survivors of a file."""
    document = tomllib.loads(file.read_text("utf-8"))
    accepted = [
        Accepted(module, entry["function"], entry["removed"], entry["added"], entry["reason"])
        for module, entries in document.items()
        for entry in entries
    ]
    without = [each for each in accepted if not each.reason.startswith(("equivalent: ", "accepted: "))]
    if without:
        raise ValueError(
            f"accepted.toml: the reason for {without[0].function} in {without[0].module} must begin with"
            f" 'equivalent: ' or 'accepted: ', got {without[0].reason!r}"
        )
    return accepted
