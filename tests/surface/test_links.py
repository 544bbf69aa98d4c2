"""Every link in the documentation leads somewhere, and every page and picture can be reached."""

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
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_TARGETS = re.compile(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"\s]+)\"")


@cache
def prose(page: Path) -> str:
    """Return a page without its code blocks, where brackets do not mark links."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def targets(page: Path) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page."""
    for groups in _TARGETS.findall(prose(page)):
        yield "".join(groups)


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, formed like those of GitHub."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    repeats: dict[str, int] = {}
    for heading in headings:
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) if "](" in heading else heading
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        repeats[name] = repeats.get(name, -1) + 1
    return {
        f"{name}-{number}" if number else name for name, last in repeats.items() for number in range(last + 1)
    }


def resolve_target(page: Path, target: str) -> tuple[Path, str]:
    """Return the file and the anchor of a target."""
    path, _, anchor = target.partition("#")
    return ((page.parent / path).resolve() if path else page), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page__link_or_picture__leads_to_an_existing_file_and_heading(page: Path) -> None:
    broken = []
    for target in targets(page):
        if target.startswith("https://"):
            continue
        path, anchor = resolve_target(page, target)
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_pages__all__are_reachable_from_the_readme() -> None:
    seen, pending = {README}, [README]
    while pending:
        page = pending.pop()
        for target in targets(page):
            path, _ = resolve_target(page, target)
            if path.suffix == ".md" and path.exists() and path not in seen:
                seen.add(path)
                pending.append(path)
    assert [page.name for page in PAGES if page not in seen] == []


def test_pictures__all__are_shown_by_a_page() -> None:
    shown = {resolve_target(page, target)[0] for page in PAGES for target in targets(page)}
    files = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".svg", ".png")]
    assert files
    assert [str(path.relative_to(ROOT)) for path in files if path not in shown] == []


def test_anchors__headings_with_code_or_repeated__match_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# `[service.batch]`\n## What *is* done, and not?\n## Twice\n## Twice\n```\n# no\n```\n")
    assert anchors(page) == {"servicebatch", "what-is-done-and-not", "twice", "twice-1"}
