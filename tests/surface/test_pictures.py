"""The pictures of the guides are what the code does, can be read by everybody, and are shown somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from benchmarks.pictures import drawing
from benchmarks.pictures.__main__ import QUICK, SLOW, path_of

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
NAMES = (*QUICK, *SLOW)


def pages() -> Iterator[tuple[Path, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield page, page.read_text("utf-8")


def test_pictures__played_again__are_the_committed_bytes() -> None:
    """In a process of its own: a scene sets clocks and chances for as long as it is played."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "benchmarks.pictures", "--check"]
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_pictures__in_the_folder__are_those_that_are_drawn() -> None:
    assert {path.stem for path in (ROOT / "docs" / "pictures").glob("*.svg")} == set(QUICK)


@pytest.mark.parametrize("name", NAMES)
def test_picture__file__has_words_for_those_who_do_not_see_it_and_both_pages(name: str) -> None:
    text = path_of(name).read_text("utf-8")
    svg = ET.fromstring(text)  # noqa: S314 - our own file
    said = [svg.findtext(f"{SVG}title") or "", svg.findtext(f"{SVG}desc") or ""]
    assert all(len(words) > 20 for words in said)
    assert svg.get("role") == "img"
    assert "@media (prefers-color-scheme:dark)" in text
    assert re.findall(r"https?://[^'\s]+", text) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in text


@pytest.mark.parametrize("name", NAMES)
def test_picture__file__keeps_its_words_within_its_frame(name: str) -> None:
    svg = ET.fromstring(path_of(name).read_text("utf-8"))  # noqa: S314 - our own file
    for text in svg.iter(f"{SVG}text"):
        x, width = float(text.get("x", "0")), 7 * len(text.text or "")
        left = {"end": x - width, "middle": x - width / 2}.get(text.get("text-anchor", ""), x)
        assert -10 <= left <= left + width <= drawing.WIDTH + 20, text.text


@pytest.mark.parametrize("name", NAMES)
def test_picture__in_a_guide__has_a_sentence_in_its_place(name: str) -> None:
    target = path_of(name).relative_to(ROOT / "docs").as_posix()
    shown = [
        alt
        for page, text in pages()
        for alt, path in re.findall(r"!\[([^\]]+)\]\(([^)]+)\)", text)
        if path == target
    ]
    assert shown
    assert all(len(alt) > 30 for alt in shown)
