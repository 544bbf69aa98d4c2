"""The site that `make docs` builds has a place for every page and every public name."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.surface.test_public_api import MODULES, exports
from website.api import API, page_text, qualified_names
from website.navigation import SECTIONS
from website.source import adapted, write_source

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = {name.rpartition(".")[2] for name in qualified_names()}


def imported_names(page: Path) -> set[str]:
    """Return what the Python examples of a page import from comporta."""
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return {
        alias.name
        for example in examples
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "comporta"
        for alias in node.names
    }


@pytest.mark.parametrize("module", MODULES)
def test_api_reference__exported_names__are_all_described(module: str) -> None:
    assert set(exports(importlib.import_module(module))) - NAMES == set()


def test_api_reference__names_that_pages_import__are_all_described() -> None:
    types_of_asgi = {"Receive", "Scope", "Send"}
    missing = {page.name: imported_names(page) - NAMES - types_of_asgi for page in PAGES}
    assert {page: names for page, names in missing.items() if names} == {}


def test_api_reference__names__occur_once() -> None:
    names = qualified_names()
    assert len(names) == len(set(names))


@pytest.mark.parametrize("title", API)
def test_api_page__each_name__has_one_directive(title: str) -> None:
    directives = re.findall(r"^\.\. auto\w+:: (\S+)", page_text(title), re.MULTILINE)
    assert directives == [
        f"{module}.{name}" for module, names in API[title].items() for name in names.split()
    ]


def test_navigation__every_page__has_one_place() -> None:
    listed = [page for pages in SECTIONS.values() for page in pages if page != "api/index"]
    files = [path for path in ROOT.glob("*.md") if path.name != "README.md"]
    files += (ROOT / "docs").rglob("*.md")
    assert sorted(listed) == sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in files)


def test_source__whole_site__has_no_link_to_a_file_that_is_missing(tmp_path: Path) -> None:
    write_source(tmp_path / "site")
    for page in (tmp_path / "site").rglob("*.md"):
        prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        assert "<picture>" not in prose, page
        for target in re.findall(r"\]\(([^)#\s]+)", prose):
            assert target.startswith("https://") or (page.parent / target).exists(), (page, target)


def test_site__every_page__is_read_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "website", str(tmp_path / "site"), "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_adapted__link_to_a_file_outside_of_the_site__becomes_text(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    text = "[there](there.md#part), [test](../tests/x.py), [`a[b]`](gone.md)\n```\n[x](y)\n```\n"
    assert adapted(text, tmp_path / "page.md") == "[there](there.md#part), test, `a[b]`\n```\n[x](y)\n```\n"
