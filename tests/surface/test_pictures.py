"""The pictures of the guides show what the code does, are accessible, and appear on a page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from benchmarks.pictures.__main__ import QUICK, SLOW, path_of

from comporta.cli import sim_charts as drawing

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = (*QUICK, *SLOW)


def pages() -> Iterator[tuple[Path, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield page, page.read_text("utf-8")


def test_pictures__drawn_again__are_identical_to_the_committed_files() -> None:
    """In a separate process, because a scene replaces clocks and randomness while it runs."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "benchmarks.pictures", "--check"]
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_pictures__files_in_the_folder__are_exactly_those_with_a_scene() -> None:
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.svg")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_picture__file__has_alternative_text_and_a_dark_mode(name: str) -> None:
    text = path_of(name).read_text("utf-8")
    svg = ET.fromstring(text)  # noqa: S314 - our own file
    descriptions = [svg.findtext(f"{SVG}title") or "", svg.findtext(f"{SVG}desc") or ""]
    assert all(len(text) > 20 for text in descriptions)
    assert svg.get("role") == "img"
    assert "@media (prefers-color-scheme:dark)" in text
    assert re.findall(r"https?://[^'\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


@pytest.mark.parametrize("name", NAMES)
def test_picture__texts_in_the_file__stay_within_its_frame(name: str) -> None:
    svg = ET.fromstring(path_of(name).read_text("utf-8"))  # noqa: S314 - our own file
    for text in svg.iter(f"{SVG}text"):
        x, width = float(text.get("x", "0")), 7 * len(text.text or "")
        left = {"end": x - width, "middle": x - width / 2}.get(text.get("text-anchor", ""), x)
        assert -10 <= left <= left + width <= drawing.WIDTH + 20, text.text


@pytest.mark.parametrize("name", NAMES)
def test_picture__on_a_page__has_a_sentence_as_alternative_text(name: str) -> None:
    target = path_of(name)
    shown = [
        alt
        for page, text in pages()
        for alt, path in re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
        if (page.parent / path).resolve() == target
    ]
    assert shown
    assert all(len(alt) > 30 for alt in shown)
