"""The Python examples of every page run as shown, and the package exports what the pages promise."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from tests.support import command

import comporta
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial.md"  # its programs need each other; test_tutorial.py runs them
SNIPPETS = [
    pytest.param(page, text, id=f"{page.stem}-{number}")
    for page in PAGES
    if page != TUTORIAL
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_page__snippet__runs_as_shown(page: Path, snippet: str, valkey: Server, tmp_path: Path) -> None:
    """Only the server address and the name of the application are replaced.

    The first TOML file that the page shows exists as ``comporta.toml``.
    """
    app = f"docs-{uuid.uuid4().hex}"
    command(valkey, "FLUSHALL")
    shown = re.search(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if shown:
        (tmp_path / "comporta.toml").write_text(_adapt(shown[1], valkey, app))
    environ = {**os.environ, "REDIS_URL": _url(valkey), "COMPORTA_APP": app}
    program = [sys.executable, "-W", "error", "-c", _adapt(snippet, valkey, app)]
    ran = subprocess.run(program, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    shutil.rmtree(directory_path(app), ignore_errors=True)
    assert ran.returncode == 0, ran.stderr


def _adapt(text: str, server: Server, app: str) -> str:
    """Return an example with the address of a real server and a name that no other test uses."""
    return text.replace("redis://localhost:6379/0", _url(server)).replace("my-app", app)


def _url(server: Server) -> str:
    """Return the address with a timeout that a busy machine does not miss."""
    return f"{server.url}?timeout=5"


def test_page__snippets_marked_py__are_python_on_migration_pages_only() -> None:
    """A block marked `py` does not run here, because it needs a package that the reader migrates from."""
    for page in PAGES:
        snippets = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        assert not snippets or page.parent.name == "migrating", page.name
        for snippet in snippets:
            ast.parse(snippet)


def test_readme__whole_page__shows_both_commands_and_reads_in_five_minutes() -> None:
    text = (ROOT / "README.md").read_text()
    for target in ("demo", "test"):
        assert f"$ make {target}" in text
    [quickstart] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(quickstart.splitlines()) <= 10
    assert len(text.split()) <= 1200


def test_exports__names__include_all_promised_ones_in_order() -> None:
    promised = {
        *("LimitStrategy", "LimitConfig", "LimitKey", "Decision", "TokenBucketLimiter", "FixedWindowLimiter"),
        *("SlidingWindowLimiter", "LeakyBucketLimiter", "RedisLimiter", "BaseLimiter", "RateLimitManager"),
        "RateLimitMonitor",
    }
    assert promised <= set(comporta.__all__)
    assert comporta.__all__ == sorted(comporta.__all__)
    assert sorted(comporta._HOME) == comporta.__all__
    assert all(getattr(comporta, name).__name__ == name for name in comporta.__all__)
    assert set(comporta.__all__) <= set(dir(comporta))
    with pytest.raises(AttributeError, match="'comporta' has no attribute 'Dam'"):
        comporta.Dam  # type: ignore[attr-defined]  # noqa: B018 - the attribute access is the test


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["workers", "http://x"], "not of a web page"),
        (["workers", "rdis://x"], "state must start with one of"),
        (["serve", "--port", "70000"], "not in the range"),
        (["nonsense"], "No such command"),
    ],
)
def test_command_line__bad_input__fails_with_one_sentence(arguments: list[str], message: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "comporta.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
