"""What a run found: a table of the modules, the survivors as diffs, and whether the run passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mutation.accepted import Accepted
from mutation.mutants import Mutant
from mutation.results import KILLED, SURVIVED, TIMED_OUT, UNCOVERED

KILLED_PERCENT_MIN = 96.0


@dataclass(frozen=True)
class Verdict:
    """The text of a report, and whether the run passes."""

    text: str
    passes: bool


def killed_percent(counts: Counter[str]) -> float:
    """Return the killed share of the mutants that were killed or survived; time-outs count for neither."""
    decided = counts[KILLED] + counts[SURVIVED] + counts[UNCOVERED]
    return 100.0 * counts[KILLED] / decided if decided else 100.0


def verdict(outcomes: Iterable[tuple[Mutant, str]], accepted: list[Accepted]) -> Verdict:
    """Return the report on mutants and what became of each of them."""
    modules: dict[str, Counter[str]] = {}
    unlisted: list[tuple[Mutant, str]] = []
    used: set[Accepted] = set()
    for mutant, status in outcomes:
        modules.setdefault(mutant.module, Counter())[status] += 1
        if status in {SURVIVED, UNCOVERED}:
            entry = next((each for each in accepted if each.matches(mutant)), None)
            if entry is None:
                unlisted.append((mutant, status))
            else:
                used.add(entry)
    unused = [each for each in accepted if each.module in modules and each not in used]
    total = sum(modules.values(), Counter())
    percent = killed_percent(total)
    parts = [
        *(f"{status}: {mutant.place.function}\n{mutant.diff}\n" for mutant, status in unlisted),
        *(
            f"accepted.toml lists a mutant that does not survive: {each.function} {each.added!r}"
            for each in unused
        ),
        _table(modules, total),
    ]
    if percent < KILLED_PERCENT_MIN:
        parts.append(f"{percent:.1f} % were killed; at least {KILLED_PERCENT_MIN:.0f} % are required.")
    if unlisted:
        parts.append(f"{len(unlisted)} survivors are not in mutation/accepted.toml.")
    passes = percent >= KILLED_PERCENT_MIN and not unlisted and not unused
    return Verdict("\n".join(parts), passes)


def _table(modules: dict[str, Counter[str]], total: Counter[str]) -> str:
    columns = (KILLED, SURVIVED, UNCOVERED, TIMED_OUT)
    lines = [
        f"{'module':<40}{'mutants':>9}" + "".join(f"{column:>11}" for column in columns) + f"{'killed':>9}"
    ]
    for name, counts in [*modules.items(), ("all", total)]:
        numbers = "".join(f"{counts[column]:>11}" for column in columns)
        lines.append(f"{name:<40}{counts.total():>9}{numbers}{killed_percent(counts):>7.1f} %")
    return "\n".join(lines)
