"""What the archives must contain, and must not."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "comporta"
DOCUMENTS = ("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml")


def package_files() -> set[str]:
    """Return every file of the package, as it is named in a wheel."""
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wheel_problems(wheel: Path) -> list[str]:
    """Return what is wrong with the files of a wheel."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    ours = package_files()
    info = {name for name in packed if name.split("/")[0].endswith(".dist-info")}
    return [
        *(f"{wheel.name} lacks {name}" for name in sorted(ours - packed)),
        *(f"{wheel.name} contains {name}" for name in sorted(packed - ours - info)),
        *(f"{wheel.name} lacks its licence" for _ in range(not any("LICENSE" in name for name in info))),
    ]


def sdist_problems(sdist: Path) -> list[str]:
    """Return what is wrong with the files of a source archive."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    needed = {f"src/{name}" for name in package_files()} | set(DOCUMENTS)
    foreign = {name for name in packed if name.split("/")[0] in {".venv", "build", "dist", ".ci", ".git"}}
    compiled = {name for name in packed if name.endswith((".pyc", ".sqlite3", ".env"))}
    return [
        *(f"{sdist.name} lacks {name}" for name in sorted(needed - packed)),
        *(f"{sdist.name} contains {name}" for name in sorted(foreign | compiled)),
    ]
