"""docs/reference/metrics.md lists every metric and every event of the code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import comporta

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
FLEET = (ROOT / "docs" / "operations" / "running-a-fleet.md").read_text(encoding="utf-8")
CODE = "\n".join(path.read_text(encoding="utf-8") for path in Path(comporta.__file__).parent.rglob("*.py"))

COUNTED_METRICS = set(re.findall(r"\b(?:counter|histogram|count|observe)\(\s*\"([a-z]+_[a-z_]+)\"", CODE))
PUBLISHED_EVENTS = set(re.findall(r"\b(?:_?publish|BreakerEvent)\(\s*\"([a-z]+_[a-z_]+)\"", CODE))
OBSERVED_METRICS = set(re.findall(r"\b(?:histogram|observe)\(\s*\"([a-z]+_[a-z_]+)\"", CODE))
ENDINGS = {"counter": "_total", "histogram": "_bucket", "gauge": ""}


def section(heading: str) -> str:
    """Return the text of a section of the page."""
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert match, heading
    return match[1]


def metric_kinds() -> dict[str, str]:
    """Return the kind of every metric that has a row on the page."""
    return dict(re.findall(r"^\| `([a-z_]+)` \| (counter|histogram|gauge)", PAGE, re.MULTILINE))


def event_kinds() -> set[str]:
    """Return the kinds of events that have a row on the page."""
    rows = re.findall(r"^\| (`.*?) \|", section("Events"), re.MULTILINE)
    return {kind for row in rows for kind in re.findall(r"`(\w+)`", row)}


def is_in_code(name: str) -> bool:
    """Return whether the code contains a name, whole or as an f-string of two parts."""
    before, _, after = name.rpartition("_")
    return f'"{name}"' in CODE or (f'f"{before}_{{' in CODE and f'"{after}"' in CODE)


def test_page__metrics_and_events_in_the_code__are_all_listed() -> None:
    assert len(COUNTED_METRICS) > 5
    assert len(PUBLISHED_EVENTS) > 5
    assert COUNTED_METRICS - set(metric_kinds()) == set()
    assert PUBLISHED_EVENTS - event_kinds() == set()


def test_page__listed_metrics_and_events__are_all_in_the_code() -> None:
    assert [name for name in metric_kinds() if not is_in_code(name)] == []
    assert [name for name in sorted(event_kinds()) if not is_in_code(name)] == []


def test_page__metric_observed_as_a_histogram__is_listed_as_a_histogram() -> None:
    assert OBSERVED_METRICS
    kinds = metric_kinds()
    assert {name: kinds[name] for name in OBSERVED_METRICS} == dict.fromkeys(OBSERVED_METRICS, "histogram")


def test_alerts__metrics_and_events__are_listed_on_the_page() -> None:
    expressions = re.findall(r"^\s+expr: (.+?)(?:  #.*)?$", FLEET, re.MULTILINE)
    assert len(expressions) > 5
    kinds = {word for kinds in re.findall(r"kind=~?\"([^\"]+)\"", FLEET) for word in kinds.split("|")}
    plain = [re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", text) for text in expressions]
    used = {word for text in plain for word in re.findall(r"[a-z]+(?:_[a-z]+)+", text)}
    assert used <= {f"{name}{ENDINGS[kind]}" for name, kind in metric_kinds().items()} | {"events_total"}
    assert kinds <= event_kinds()
