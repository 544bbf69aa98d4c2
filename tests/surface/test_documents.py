"""What the documents show, runs; where they point, there is something."""

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

import comporta
from comporta.stores.folder import path_of
from comporta.testing import Server

ROOT = Path(__file__).resolve().parents[2]
TRIES = 3
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = [
    pytest.param(page, text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "snippet"), SNIPPETS)
def test_page__snippet__runs_as_it_stands(page: Path, snippet: str, valkey: Server, tmp_path: Path) -> None:
    """Server addresses aside; a TOML file shown on the page is there to be read.

    What is wrong with a snippet is wrong each time; a machine that stalls misses a deadline now and then.
    """
    app = f"docs-{uuid.uuid4().hex}"
    shown = re.search(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if shown:
        (tmp_path / "comporta.toml").write_text(_on(valkey, shown[1], app))
    environ = {**os.environ, "REDIS_URL": valkey.url, "COMPORTA_APP": app}
    command = [sys.executable, "-W", "error", "-c", _on(valkey, snippet, app)]
    for _ in range(TRIES):
        ran = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        shutil.rmtree(path_of(app), ignore_errors=True)
        if ran.returncode == 0:
            break
    assert ran.returncode == 0, ran.stderr


def _on(server: Server, text: str, app: str) -> str:
    return text.replace("redis://localhost:6379/0", server.url).replace("my-app", app)


def test_page__snippets_of_other_packages__are_python_and_theirs() -> None:
    """What cannot run here is marked `py`: only where it needs a package that we do without."""
    for page in PAGES:
        theirs = re.findall(r"^```py\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        assert not theirs or page.stem.startswith("moving-from-"), page.name
        for snippet in theirs:
            ast.parse(snippet)


def test_readme__shows_the_two_commands_and_can_be_read_in_five_minutes() -> None:
    text = (ROOT / "README.md").read_text()
    for target in ("demo", "test"):
        assert f"$ make {target}" in text
    [quickstart] = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(quickstart.splitlines()) <= 10
    assert len(text.split()) <= 1200


def test_exports__names__are_what_users_were_promised() -> None:
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
        comporta.Dam  # type: ignore[attr-defined]  # noqa: B018 - that is what is tried


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["workers", "http://x"], "not the address of a page"),
        (["workers", "rdis://x"], "state must start with one of"),
        (["serve", "--port", "70000"], "not in the range"),
        (["nonsense"], "No such command"),
    ],
)
def test_command_line__bad_input__is_one_sentence(arguments: list[str], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "comporta.cli", *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode != 0
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
