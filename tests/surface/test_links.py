"""Where the documents point, there is something; and everything that is written can be found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_TARGETS = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"\s]+)\"")


@cache
def prose(page: Path) -> str:
    """Return a page without its blocks of code, in which a bracket is only a bracket."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def targets(page: Path) -> Iterator[str]:
    """Yield what a page points at, pictures included."""
    for found in _TARGETS.findall(prose(page)):
        yield "".join(found)


@cache
def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    found: dict[str, int] = {}
    for heading in headings:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) if "](" in heading else heading
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{count}" if count else name for name, most in found.items() for count in range(most + 1)}


def pointed_at(page: Path, target: str) -> tuple[Path, str]:
    """Return the file and the anchor that a target means."""
    path, _, anchor = target.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page__link_or_picture__leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    lost = []
    for target in targets(page):
        if target.startswith("https://"):
            continue
        path, anchor = pointed_at(page, target)
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(target)
    assert lost == []


def test_pages__all__can_be_reached_from_the_readme() -> None:
    seen, found = {README}, [README]
    while found:
        page = found.pop()
        for target in targets(page):
            path, _ = pointed_at(page, target)
            if path.suffix == ".md" and path.exists() and path not in seen:
                seen.add(path)
                found.append(path)
    assert [page.name for page in PAGES if page not in seen] == []


def test_pictures__all__are_shown_by_a_page() -> None:
    shown = {pointed_at(page, target)[0] for page in PAGES for target in targets(page)}
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".png")]
    assert files
    assert [str(path.relative_to(ROOT)) for path in files if path not in shown] == []


def test_anchors__headings_with_code_and_twins__are_named_as_readers_click_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `[service.batch]`\n## What *is* done, and not?\n## Twice\n## Twice\n```\n# no\n```\n")
    assert anchors(page) == {"servicebatch", "what-is-done-and-not", "twice", "twice-1"}
