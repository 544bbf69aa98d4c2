"""docs/metrics.md has every figure and every event, by its name in the code, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import comporta

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
FLEET = (ROOT / "docs" / "running-a-fleet.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in Path(comporta.__file__).parent.rglob("*.py"))

COUNTED = set(re.findall(r"\b(?:counter|histogram|count)\(\s*\"([a-z]+_[a-z_]+)\"", CODE))
PUBLISHED = set(re.findall(r"\b(?:publish|_say|News)\(\s*\"([a-z]+_[a-z_]+)\"", CODE))
ENDINGS = {"counter": "_total", "histogram": "_bucket", "gauge": ""}


def section(heading: str) -> str:
    """Return what stands under a heading of the page."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


def figures() -> dict[str, str]:
    """Return the kind of every figure that the page has a row for."""
    return dict(re.findall(r"^\| `([a-z_]+)` \| (counter|histogram|gauge)", PAGE, re.MULTILINE))


def events() -> set[str]:
    """Return the kinds of events that the page has a row for."""
    rows = re.findall(r"^\| (`.*?) \|", section("Events"), re.MULTILINE)
    return {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}


def in_the_code(name: str) -> bool:
    """Whether the code says a name; some are put together, from a word before and one after."""
    before, _, after = name.rpartition("_")
    return f'"{name}"' in CODE or (f'f"{before}_{{' in CODE and f'"{after}"' in CODE)


def test_page__figures_and_events_of_the_code__are_all_there() -> None:
    assert len(COUNTED) > 5
    assert len(PUBLISHED) > 5
    assert COUNTED - set(figures()) == set()
    assert PUBLISHED - events() == set()


def test_page__figures_and_events_on_it__are_all_in_the_code() -> None:
    assert [name for name in figures() if not in_the_code(name)] == []
    assert [name for name in sorted(events()) if not in_the_code(name)] == []


def test_page__kind_of_a_figure__is_the_one_it_is_counted_by() -> None:
    for name, kind in figures().items():
        timed = re.search(rf"\bhistogram\(\s*\"{name}\"", CODE)
        assert not timed or kind == "histogram", name


def test_alerts__figures_and_events__are_on_the_page() -> None:
    expressions = re.findall(r"^\s+expr: (.+?)(?:  #.*)?$", FLEET, re.MULTILINE)
    assert len(expressions) > 5
    kinds = {word for kinds in re.findall(r"kind=~?\"([^\"]+)\"", FLEET) for word in kinds.split("|")}
    plain = [re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", text) for text in expressions]
    used = {word for text in plain for word in re.findall(r"[a-z]+(?:_[a-z]+)+", text)}
    assert used <= {f"{name}{ENDINGS[kind]}" for name, kind in figures().items()} | {"events_total"}
    assert kinds <= events()
