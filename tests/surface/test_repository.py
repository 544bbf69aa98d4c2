"""What the repository and the built wheel contain, and what they must not contain."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))

# A path on a developer's machine, the address of a package index, the URL of a local file.
MACHINE_SPECIFIC = re.compile(
    r"""
      (?<![\w.]) /(?:work|root|home|Users)/
    | https?://\S+/simple\b
    | \bpythonhosted\.
    | \bfile:///
    """,
    re.VERBOSE,
)


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every text file that git would track. Works without git, which a downloaded archive lacks."""
    ignored = GitIgnoreSpec.from_lines(
        [".git", *(ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()]
    )
    for name in tracked_files(ignored):
        path = ROOT / name
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # an image or another binary


def tracked_files(ignored: GitIgnoreSpec) -> Iterator[Path]:
    """Yield the files that are not ignored; like git, look at nothing in a folder that is ignored."""
    for folder, folders, names in os.walk(ROOT):
        relative = Path(folder).relative_to(ROOT)
        folders[:] = [each for each in folders if not ignored.match_file(f"{relative / each}/")]
        yield from (relative / each for each in names if not ignored.match_file(relative / each))


def test_text_files__all__name_no_machine_and_no_package_index() -> None:
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, text in texts()
        if MACHINE_SPECIFIC.search(text)
        for number, line in enumerate(text.splitlines(), start=1)
        if MACHINE_SPECIFIC.search(line)
    ]
    assert lines == []


@pytest.mark.parametrize("line", ["cd /{}/main", '"/{}/x"'])
@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
def test_machine_specific__path_of_a_machine__matches(line: str, folder: str) -> None:
    assert MACHINE_SPECIFIC.search(line.format(folder))


def pinned_versions(lock: Path) -> set[str]:
    """Return the packages of a lock file with their versions."""
    return set(re.findall(r"^\S+==\S+", lock.read_text(encoding="utf-8"), re.MULTILINE))


def test_lock_files__all__exist() -> None:
    assert [path.name for path in LOCKS] == [
        *("bench.txt", "demo.txt", "dev.txt", "dist.txt", "docs.txt", "mutants.txt", "threads.txt"),
    ]


def test_lock_file_of_the_demo__versions__equal_those_for_contributors() -> None:
    demo, dev = (pinned_versions(ROOT / "requirements" / name) for name in ("demo.txt", "dev.txt"))
    assert demo < dev


@pytest.mark.parametrize("name", ["bench.txt", "dist.txt", "docs.txt", "mutants.txt"])
def test_lock_file_of_one_target__packages_for_contributors__have_the_same_version(name: str) -> None:
    """These packages are installed over those for contributors, and must not replace any of them."""
    ours, dev = (pinned_versions(ROOT / "requirements" / each) for each in (name, "dev.txt"))
    named = {each.partition("==")[0] for each in dev}
    assert {each for each in ours - dev if each.partition("==")[0] in named} == set()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_file__every_package__is_pinned_by_version_and_hash_without_url(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE), "the file contains an option, such as an index URL"
    packages = re.findall(r"^\w.*(?:\n\s+--hash=.*)*", text, re.MULTILINE)
    unpinned = [package for package in packages if "==" not in package or "--hash=" not in package]
    assert packages
    assert unpinned == []


def test_wheel__built_from_the_tree__contains_every_file_of_the_package(tmp_path: Path) -> None:
    """This matters most for Lua files: an import succeeds without them, and the first Redis call fails."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "comporta").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert "comporta/py.typed" in ours
    assert ours - packed == set()
