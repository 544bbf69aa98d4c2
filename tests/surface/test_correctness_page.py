"""docs/reference/correctness.md lists every promise, and names only tests and benchmarks that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tests.faults.all_faults import FAULTS

from comporta.simulation.invariants import INVARIANTS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
FAILOVER = (ROOT / "docs" / "reference" / "failover.md").read_text("utf-8")
PAGE = (ROOT / "docs" / "reference" / "correctness.md").read_text("utf-8")
REQUIREMENTS = {"A": 15, "B": 11, "C": 10, "D": 10, "E": 6, "S": 5, "F": 12}
PROMISING_SECTIONS = ("# comporta", "## Ten lines", "## When Redis fails")

NO_PROMISES = (
    "Your service runs in several workers",
    "comporta is fleet-wide resilience",
    "Names and settings may still change",
    "In a clone of this repository",
    "This example needs",
    "See [what to do",
)
"""How those sentences of the promising sections begin that describe, and promise nothing."""


def section(title: str) -> list[list[str]]:
    """Return the cells of the table rows below a heading, without the heading of the table."""
    text = re.split(rf"^#+ {re.escape(title)}.*$", PAGE, flags=re.MULTILINE)[1]
    rows = re.findall(r"^\| (.*) \|$", re.split(r"^#+ ", text, flags=re.MULTILINE)[0], re.MULTILINE)
    return [row.split(" | ") for row in rows][1:]


@cache
def names_of_tests(path: str) -> set[str]:
    """Return the names of the functions that pytest collects from a file."""
    body = ast.parse((ROOT / path).read_text("utf-8")).body
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name for name in functions if name.startswith("test_")}


def readme_sentences() -> list[str]:
    """Return the sentences of the README that promise something, without links and code blocks."""
    text = re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"^(#+ .+)$", text, flags=re.MULTILINE)
    prose = " ".join(
        body for title, body in zip(parts[1::2], parts[2::2], strict=True) if title in PROMISING_SECTIONS
    )
    prose = re.sub(r" \(\[[^]]*\]\([^)]*\)\)|^[*!<|].*$|</?picture>|^ +<.*$", "", prose, flags=re.MULTILINE)
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", re.sub(r"\s+", " ", prose).strip())
    return [each for each in sentences if not each.startswith(NO_PROMISES)]


def test_requirements__every_number__has_a_row() -> None:
    listed = re.findall(r"^\| ([A-FS]\d+) \|", PAGE, re.MULTILINE)
    assert listed == [f"{letter}{n}" for letter, last in REQUIREMENTS.items() for n in range(1, last + 1)]


def test_rows__of_every_promise__name_what_holds_it() -> None:
    tables = re.findall(r"^\| .* \| held by \|\n\|---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > sum(REQUIREMENTS.values())
    assert [row for row in rows if not re.search(r" \| `(?:tests|benchmarks)/[^|]+ \|$", row)] == []


def named_tests() -> set[tuple[str, str]]:
    return set(re.findall(r"`(tests/[\w/]+/test_\w+\.py)::(\w+)`", PAGE))


def test_named_tests__all__are_tests_of_their_file() -> None:
    assert len(named_tests()) > 100
    assert len(named_tests()) == len(set(re.findall(r"`(tests/[^`]*::[^`]*)`", PAGE)))
    assert {(path, name) for path, name in named_tests() if name not in names_of_tests(path)} == set()


def test_named_tests__of_each_whole_file_in_this_run__are_collected(request: pytest.FixtureRequest) -> None:
    """In a run of everything, that is every test but those of `make soak`."""
    options = ("keyword", "markexpr", "deselect", "lf")
    chosen = [request.config.getoption(option, None) for option in options]
    if any(chosen) or any("::" in each for each in request.config.args):
        pytest.skip("this run chooses single tests")
    collected: dict[str, set[str]] = {}
    for item in request.session.items:
        path = item.path.relative_to(ROOT).as_posix()
        collected.setdefault(path, set()).add(item.name.partition("[")[0])
    named = {(path, name) for path, name in named_tests() if path in collected}
    assert {(path, name) for path, name in named if name not in collected[path]} == set()


def test_named_files__all__exist() -> None:
    named = set(re.findall(r"`((?:tests|benchmarks)/[\w/]+\.py)(?:::\w+)?`", PAGE))
    assert {path for path in named if not (ROOT / path).is_file()} == set()


def test_readme__every_promise__has_a_row() -> None:
    listed = {cells[0] for cells in section("Promises of the README")}
    promised = set(readme_sentences())
    assert promised - listed == set()
    assert listed - promised == set()


def test_comparison__every_cell_about_comporta__has_a_row() -> None:
    table = README.partition("## How it compares")[2].partition("\n## ")[0]
    claimed = [tuple(row.split(" | ")[:2]) for row in re.findall(r"^\| (\S.*) \|$", table, re.MULTILINE)]
    assert len(claimed) > 10
    assert [tuple(cells[:2]) for cells in section("The comparison in the README")] == claimed[1:]


def test_failover__every_bound_of_an_outage__has_a_row() -> None:
    tables = re.findall(r"^\| \| (.+) \|\n\|---.*\n((?:\|.*\n)+)", FAILOVER, re.MULTILINE)
    rows = [
        (title, row.split(" | ")[0].removeprefix("| ")) for title, body in tables for row in body.splitlines()
    ]
    assert {title for title, _ in rows} > {"grants beyond the limit, at most", "failures, at most"}
    assert sorted(map(tuple, (cells[:2] for cells in section("Bounds of an outage")))) == sorted(rows)


def test_failover__every_fault__has_a_row_with_its_file() -> None:
    listed = {cells[0]: cells[1].strip("`") for cells in section("Faults of the state")}
    assert listed == {fault.name: f"{fault.check.__module__.replace('.', '/')}.py" for fault in FAULTS}


def test_simulation__every_invariant__has_a_row_with_its_docstring() -> None:
    listed = {cells[0].strip("`"): cells[1] for cells in section("Invariants of the simulation")}
    documented = {name: str(check.__doc__).partition("\n")[0] for name, check in INVARIANTS.items()}
    assert listed == documented
