"""ARCHITECTURE.md names only files, classes and functions that exist, and the layers that are enforced."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "comporta"
PAGE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")

FILE = re.compile(r"`((?:[\w/]+/)?\w+\.(?:py|lua))`")
PAIR = re.compile(r"`((?:[\w/]+/)?\w+\.(?:py|lua))` `([A-Za-z_][\w.]*)`")
FOLDER = re.compile(r"`((?:\w+/)+)`")


def paths_of(name: str) -> list[Path]:
    if (ROOT / name).exists():
        return [ROOT / name]
    return [path for path in SOURCE.rglob(Path(name).name) if path.as_posix().endswith(f"/{name}")]


def test_architecture__files__exist() -> None:
    named = set(FILE.findall(PAGE))
    assert len(named) > 15
    assert {name for name in named if not paths_of(name)} == set()


def test_architecture__folders__exist() -> None:
    named = set(FOLDER.findall(PAGE))
    assert {name for name in named if not (ROOT / name).is_dir() and not (SOURCE / name).is_dir()} == set()


def test_architecture__names_beside_a_file__are_defined_in_it() -> None:
    pairs = set(PAIR.findall(PAGE))
    assert len(pairs) > 8
    missing = {
        (name, part)
        for name, function in pairs
        for part in function.split(".")
        if not re.search(rf"\b(?:def|class) {part}\b", paths_of(name)[0].read_text("utf-8"))
    }
    assert missing == set()


def test_architecture__layers__are_those_of_the_import_linter() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    [contract] = config["tool"]["importlinter"]["contracts"]
    layers = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    shown = PAGE.partition("## Layers")[2].partition("```\n")[2].partition("```")[0]
    order = [set(re.findall(r"\b\w+(?=/)", line)) for line in shown.splitlines()]
    packages = [names for names in order if names]
    for names, layer in zip(packages[:-1], layers, strict=False):
        assert names <= layer, (names, layer)
    assert layers[-1] <= set(re.findall(r"\w+", shown))


def test_packages__each__list_their_modules() -> None:
    """The first lines of a package say what each of its modules does."""
    missing = {}
    for init in SOURCE.rglob("__init__.py"):
        modules = {path.stem for path in init.parent.glob("*.py")} - {"__init__", "__main__"}
        text = init.read_text("utf-8")
        unnamed = {name for name in modules if not re.search(rf"\b{name}\b", text)}
        if unnamed and init.parent != SOURCE:
            missing[init.parent.relative_to(SOURCE).as_posix()] = unnamed
    assert missing == {}
