"""Which mutants a module has. Needs mutmut, so ``make mutants`` runs this file."""

from __future__ import annotations

import pytest

from mutation import generation, mutants
from mutation.generation import mutants_of

SOURCE = '''"""A module."""

LIMIT = 10


def clamped(value: int, low: int = 0) -> int:
    """Return a value between two bounds."""
    assert value == value
    if value < low:
        return low
    return LIMIT if value > LIMIT else value


class Counter:
    """Counts."""

    @property
    def text(self) -> str:
        """The text."""
        return "nothing was counted" if self.count == 1 else "count"
'''


@pytest.fixture
def changes(tmp_path, monkeypatch):  # type: ignore[no-untyped-def]
    """Return the mutants of a module as pairs of function and added line."""
    (tmp_path / "comporta").mkdir()
    (tmp_path / "comporta" / "sample.py").write_text(SOURCE)
    monkeypatch.setattr(mutants, "SOURCE", tmp_path)
    return [(each.place.function, each.removed_and_added[1], each) for each in mutants_of("sample.py")]


def test_mutants__comparison__is_replaced_in_its_function(changes) -> None:  # type: ignore[no-untyped-def]
    assert ("clamped", "if value <= low:") in [each[:2] for each in changes]
    assert ("Counter.text", 'return "nothing was counted" if self.count != 1 else "count"') in [
        each[:2] for each in changes
    ]


def test_mutants__of_prose_defaults_assertions_and_constants__are_not_made(changes) -> None:  # type: ignore[no-untyped-def]
    added = [each[1] for each in changes]
    assert not [line for line in added if "LIMIT = " in line or "low: int" in line or "assert" in line]
    assert not [line for line in added if "nothing was counted" not in line and "NOTHING" in line]


def test_mutants__each__compiles_to_other_code_of_its_statement(changes) -> None:  # type: ignore[no-untyped-def]
    assert len(changes) > 5
    assert len({each[2].mutated for each in changes}) == len(changes)
    for function, _, mutant in changes:
        assert mutant.code is not None
        assert mutant.code.co_qualname == function
        changed = [
            number
            for number, (one, two) in enumerate(
                zip(SOURCE.splitlines(), mutant.mutated.splitlines(), strict=True), 1
            )
            if one != two
        ]
        assert set(changed) <= set(mutant.place.lines)


def test_statement_lines__block__are_those_of_its_head() -> None:
    lines = generation._statement_lines("if (a and\n    b):\n    c(\n        1)\n")
    assert [list(lines[number]) for number in (1, 2, 3, 4)] == [[1, 2], [1, 2], [3, 4], [3, 4]]
