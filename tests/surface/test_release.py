"""What outsiders check before they adopt: metadata, extras, the workflow, and the page of dependencies.

`make dist` builds the archives and tries each extra, which takes minutes.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from release.contents import package_files
from release.smoke import PROGRAMS

import comporta

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
DEPENDENCIES = (ROOT / "docs" / "reference" / "dependencies.md").read_text("utf-8")
LOCK = (ROOT / "requirements" / "dev.txt").read_text("utf-8")


def package_name(requirement: str) -> str:
    """Return the name of the package that a requirement names."""
    return re.split(r"[\[<>=; ]", requirement)[0]


def test_version__of_package_and_metadata__is_one() -> None:
    assert PROJECT["version"] == comporta.__version__


def test_extras__each__has_a_program_that_make_dist_runs() -> None:
    assert sorted(PROGRAMS) == sorted(["", *EXTRAS])


@pytest.mark.parametrize("extra", PROGRAMS)
def test_program_of_an_extra__source__is_python(extra: str) -> None:
    compile(PROGRAMS[extra], extra or "core", "exec")


def test_extra_all__packages__are_those_of_all_others() -> None:
    [everything] = EXTRAS["all"]
    named = everything.partition("[")[2].rstrip("]").split(",")
    assert sorted(named) == sorted(set(EXTRAS) - {"all"})


def test_typing__marker__is_in_the_package() -> None:
    assert "comporta/py.typed" in package_files()


def test_workflow__python_versions__are_those_of_the_classifiers() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == classified


def test_workflow__commands__are_make_targets() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(commands) >= 5
    assert [each for each in commands if not each.startswith("make ") or each.split()[1] not in targets] == []


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"all"}))
def test_dependencies_page__packages_of_an_extra__are_listed_with_their_version(extra: str) -> None:
    for package in map(package_name, EXTRAS[extra]):
        [(version, extras)] = re.findall(rf"^\| {package} ([\d.]+) \| ([^|]+) \|", DEPENDENCIES, re.MULTILINE)
        assert f"`{extra}`" in extras
        assert re.search(rf"^{package}(?:\[\w+\])?=={re.escape(version)}\b", LOCK, re.MULTILINE), package


def test_dependencies_page__rows__name_nothing_that_is_not_an_extra() -> None:
    table = DEPENDENCIES.partition("## At run time")[2].partition("\n## ")[0]
    listed = {row.split()[1] for row in table.splitlines() if re.match(r"\| [\w-]+ [\d.]+ \|", row)}
    assert listed == {
        package_name(each) for extra, names in EXTRAS.items() if extra != "all" for each in names
    }
