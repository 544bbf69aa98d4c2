"""Copies the pages to the folder that Sphinx reads, as they are on GitHub, and adapts what differs there.

README.md becomes the front page with the contents of the sidebar, a ``<picture>`` becomes one image for
each theme, and a link to a file that is not part of the site becomes plain text.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from website.api import API, file_name, page_text
from website.navigation import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "SECURITY.md")

_LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^]]*\])*)\]\(([^)\s]+)\)")
_PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
_FENCED = re.compile(r"^(```.*?^```)", re.DOTALL | re.MULTILINE)


def write_source(folder: Path) -> None:
    """Write everything that Sphinx reads into an empty folder."""
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in ROOT_PAGES:
        shutil.copy(ROOT / name, folder / name)
    shutil.copy(ROOT / "README.md", folder / "index.md")
    _write_api(folder / "api")
    for page in sorted(folder.rglob("*.md")):
        page.write_text(adapted(page.read_text(encoding="utf-8"), page), encoding="utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.writelines(_contents(caption, pages) for caption, pages in SECTIONS.items())


def adapted(text: str, page: Path) -> str:
    """Return the text of a page for the site. Code blocks stay as they are."""
    parts = _FENCED.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = _LINK.sub(lambda link: _adapted_link(link, page), parts[number])
        parts[number] = _PICTURE.sub(_themed_images, parts[number])
    return "".join(parts)


def _adapted_link(link: re.Match[str], page: Path) -> str:
    text, target = link.groups()
    if target.startswith(("https://", "#")):
        return link[0]
    target = re.sub(r"\bREADME\.md\b", "index.md", target)
    path = page.parent / target.partition("#")[0]
    return f"[{text}]({target})" if path.is_file() else text


def _themed_images(picture: re.Match[str]) -> str:
    """Return one image for the light theme and one for the dark theme, which the reader may choose."""
    [dark] = re.findall(r'dark\)" srcset="([^"]+)"', picture[0])
    [(alt, light)] = re.findall(r'<img alt="([^"]+)" src="([^"]+)"', picture[0])
    images = ((light, "only-light"), (dark, "only-dark"))
    return "\n".join(f"```{{image}} {path}\n:alt: {alt}\n:class: {theme}\n```\n" for path, theme in images)


def _contents(caption: str, pages: tuple[str, ...]) -> str:
    entries = "".join(f"{page}\n" for page in pages)
    return f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{entries}```\n"


def _write_api(folder: Path) -> None:
    folder.mkdir()
    names = [file_name(title) for title in API]
    for title, name in zip(API, names, strict=True):
        (folder / f"{name}.rst").write_text(page_text(title), encoding="utf-8")
    entries = "".join(f"   {name}\n" for name in names)
    (folder / "index.rst").write_text(
        "API reference\n=============\n\n"
        "Every public name, from its docstring. What is not listed here may change at any time.\n\n"
        f".. toctree::\n   :maxdepth: 1\n\n{entries}",
        encoding="utf-8",
    )
