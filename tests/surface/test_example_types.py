"""The Python examples of every page, and the types of decorated functions, pass mypy --strict and pyright.

pyright's wheel contains pyright itself and a node, so both checkers work without a network.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

DECORATED = """
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from comporta import CircuitBreaker, Retry, Upstream

upstream = Upstream("pncp", "10/s", state="memory://")
breaker = CircuitBreaker("pncp", state="memory://")
retry = Retry()


@upstream.guard
@breaker
@retry
def page(number: int, *, size: int = 10) -> str:
    return f"{number} of {size}"


@upstream.guard
@breaker
@retry
async def page_async(number: int) -> str:
    return f"{number}"


async def plain(number: int) -> str:
    return f"{number}"


async def main() -> None:
    assert_type(page(1, size=2), str)
    assert_type(await page_async(1), str)
    assert_type(await upstream.call(plain, 1), str)
    assert_type(await retry.call(plain, 1), str)
    assert_type(retry.sync.call(len, "text"), int)
    assert_type(upstream.sync.call(len, "text"), int)
    async with upstream as entered:
        assert_type(entered, Upstream)
    with upstream.sync as blocking:
        assert_type(blocking.call(len, "text"), int)


takes: Callable[[int], Coroutine[Any, Any, str]] = page_async
"""

CACHED = """
from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from comporta import Cached, HealthCache, Loaded

cache = HealthCache("sqlite:///searches.db")


@cache.cached(fresh=600)
async def search(q: str, *, uf: str = "SP") -> list[str]:
    return [q, uf]


@cache.sync.cached()
def count(number: int) -> dict[str, int]:
    return {"number": number}


async def load() -> list[str]:
    return []


def load_plain() -> list[int]:
    return []


async def load_missing(missing: list[str] | None = None) -> Loaded[list[str]]:
    return Loaded(missing or [])


def load_missing_plain(missing: list[str] | None = None) -> Loaded[str]:
    return Loaded("")


async def main() -> None:
    assert_type(await search("q", uf="RJ"), list[str])
    assert_type(await search.fetch("q"), Cached[list[str]])
    assert_type(await search.get("q"), Cached[list[str]] | None)
    assert_type(await search.delete("q"), bool)
    assert_type(count(1), dict[str, int])
    assert_type(count.fetch(1), Cached[dict[str, int]])
    assert_type(count.get(1), Cached[dict[str, int]] | None)
    assert_type((await cache.fetch("ana", {}, load, force=True)).value, list[str])
    assert_type((await cache.fetch("ana", {}, load_plain)).value, list[int])
    assert_type(await cache.fetch("ana", {}, load_missing), Cached[list[str]])
    assert_type(await cache.fetch("ana", {}, load_missing_plain), Cached[str])
    assert_type(cache.sync.fetch("ana", {}, load_plain), Cached[list[int]])
    assert_type(cache.sync.fetch("ana", {}, load_missing_plain), Cached[str])
    stored: Cached[list[str]] | None = await cache.get_from_cache("ana", {})
    many: list[Cached[list[str]] | None] = await cache.get_many("ana", [{}])
    any_type: Cached = many[0] or await cache.fetch("ana", {}, load)
    assert_type(any_type.value, Any)
    print(stored)


takes: Callable[[str], Coroutine[Any, Any, list[str]]] = search
"""

WRONG = """
from comporta import CircuitBreaker, HealthCache, Retry, Upstream

upstream = Upstream("pncp", "10/s", state="memory://")


@upstream.guard
@CircuitBreaker("pncp", state="memory://")
@Retry()
def page(number: int) -> str:
    return f"{number}"


page("one")
upstream.sync.call(len, 5)
length: int = page(1)
cache = HealthCache("sqlite:///searches.db").sync
text: str = cache.fetch("ana", {}, lambda: 5).value
cache.cached()(page).get("one")
cache.fetch("ana", {}, page, forced=True)
"""
WRONG_LINES = {14, 15, 16, 18, 19, 20}

# What the examples use of packages that have neither annotations nor stubs. pyright would otherwise guess the
# types from their code, and finds no task where Celery's decorator returns a proxy.
STUBS = {
    "boto3/__init__.pyi": """
from typing import Any

def client(service_name: str, **options: Any) -> Any: ...
""",
    "botocore/__init__.pyi": "",
    "botocore/config.pyi": """
class Config:
    def __init__(self, *, retries: dict[str, int], connect_timeout: float, read_timeout: float) -> None: ...
""",
    "celery/__init__.pyi": """
from collections.abc import Callable
from typing import Any, overload

class Celery:
    def __init__(self, main: str, *, broker: str, task_cls: type[Task] = ...) -> None: ...
    @overload
    def task(self, function: Callable[..., Any], /) -> Any: ...
    @overload
    def task(self, *, bind: bool, max_retries: int) -> Callable[[Callable[..., Any]], Any]: ...

class Task:
    request: Any
    def retry(self, *, exc: Exception, countdown: float) -> Exception: ...
""",
    "django/__init__.pyi": "",
    "django/conf/__init__.pyi": "from typing import Any\n\nsettings: Any\n",
    "django/core/__init__.pyi": "",
    "django/core/wsgi.pyi": """
from wsgiref.types import WSGIApplication

def get_wsgi_application() -> WSGIApplication: ...
""",
    "django/http/__init__.pyi": """
class HttpRequest: ...

class HttpResponse:
    def __init__(self, content: bytes, *, status: int, headers: dict[str, str]) -> None: ...
""",
    "gevent/__init__.pyi": "",
    "gevent/monkey.pyi": "def patch_all() -> None: ...\n",
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every example as a program of its own."""
    folder = tmp_path_factory.mktemp("examples")
    for page in PAGES:
        name = re.sub(r"\W", "_", f"{page.parent.name}_{page.stem}")
        for number, text in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            (folder / f"{name}_{number}.py").write_text(text)
    (folder / "decorated.py").write_text(DECORATED)
    (folder / "cached.py").write_text(CACHED)
    (folder / "wrong.py").write_text(WRONG)
    return folder


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    for name, text in STUBS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_examples__mypy_strict__finds_mistakes_in_the_wrong_program_only(programs: Path, stubs: Path) -> None:
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}"]
    # With the options and the cache of `make check`, the package itself is not analysed again.
    command += [f"--cache-dir={ROOT / '.mypy_cache'}", "--hide-error-context", "."]
    ran = _run(command, programs, MYPYPATH=str(stubs))
    errors = [line for line in ran.stdout.splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith("wrong.py:")] == [], ran.stdout
    assert {int(line.split(":")[1]) for line in errors} == WRONG_LINES


def test_examples__pyright__finds_mistakes_in_the_wrong_program_only(programs: Path, stubs: Path) -> None:
    config = {"pythonVersion": "3.11", "stubPath": str(stubs)}
    (programs / "pyrightconfig.json").write_text(json.dumps(config))
    ran = _run([sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"], programs)
    report = json.loads(ran.stdout)
    errors = [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in report["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    assert report["summary"]["filesAnalyzed"] > len(PAGES)
    assert [error for error in errors if error[0] != "wrong.py"] == []
    assert {line for _, line, _ in errors} == WRONG_LINES


def _run(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # PYRIGHT_PYTHON_IGNORE_WARNINGS: do not ask the registry whether there is a newer version.
    environ = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", **variables}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
