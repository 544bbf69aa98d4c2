"""Modules import only from layers below them, and ``import comporta`` loads nothing slow."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Print the top-level names that the import adds to those that the interpreter loaded at startup.
NAMES_IMPORTED = """
import sys
before = set(sys.modules)
from comporta import *
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_layers__all_modules__import_downwards_only() -> None:
    """``pyproject.toml`` lists the layers in ``[tool.importlinter]``."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run(
        [lint_imports, "--no-cache", "--no-logo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_import__fresh_interpreter__loads_nothing_but_the_standard_library(tmp_path: Path) -> None:
    imported = subprocess.run(
        [sys.executable, "-c", NAMES_IMPORTED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    names = set(imported.stdout.split())
    assert "comporta" in names
    assert names - sys.stdlib_module_names == {"comporta"}


def test_import__fresh_interpreter__loads_no_slow_part_of_the_standard_library(tmp_path: Path) -> None:
    """Each of these takes milliseconds to load; a function that needs one imports it itself."""
    imported = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {[str(ROOT / 'src')]!r}\n{NAMES_IMPORTED}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    slow = {"asyncio", "hashlib", "json", "logging", "pathlib", "socket", "ssl", "tempfile", "tomllib"}
    assert not slow & set(imported.stdout.split())
