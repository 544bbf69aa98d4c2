"""Only ``comporta/runtime.py`` takes time, randomness, threads and identity from the machine.

Otherwise a simulation could not replace them. Programs (commands, service, demo) and test tools are exempt.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src/comporta"
PROGRAMS = {"cli", "demo", "service", "testing"}
PROVIDERS = {"runtime.py", "simulation"}

EVERYTHING = {"_thread", "multiprocessing", "random", "secrets", "time", "uuid"}
FORBIDDEN = {
    "asyncio": {"to_thread"},
    "concurrent.futures": {"ProcessPoolExecutor", "ThreadPoolExecutor"},
    "datetime.date": {"today"},
    "datetime.datetime": {"now", "today", "utcnow"},
    "os": {"getpid", "getrandom", "times", "uname", "urandom"},
    "platform": {"node", "uname"},
    "socket": {"gethostname"},
    "threading": {"Thread", "Timer"},
}
OF_ANY_OBJECT = {"run_in_executor", "set_default_executor"}
"""Methods of an event loop that use threads."""

ALLOWED = {"stores/failover/store.py": {"asyncio.to_thread"}}
"""A thread of the event loop, which a simulation replaces as a whole."""


def uses(text: str) -> Iterator[str]:
    """Find what a module takes from the machine, by its full name."""
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update((name.asname or name.name, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.update((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            written = ast.unparse(node)
            first, dot, rest = written.partition(".")
            module, _, name = (imported.get(first, "") + dot + rest).rpartition(".")
            if module in EVERYTHING or name in FORBIDDEN.get(module, ()):
                yield f"{module}.{name}"
            elif isinstance(node, ast.Attribute) and node.attr in OF_ANY_OBJECT:
                yield node.attr


MODULES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.relative_to(SOURCE).parts[0] not in PROGRAMS | PROVIDERS
]


def test_modules__all_but_the_runtime__take_nothing_from_the_machine() -> None:
    found = {
        name: sorted(set(uses(path.read_text())) - ALLOWED.get(name, set()))
        for path in MODULES
        for name in [str(path.relative_to(SOURCE))]
    }
    assert not {name: names for name, names in found.items() if names}


def test_exemptions__each__is_needed() -> None:
    for name, names in ALLOWED.items():
        assert names <= set(uses((SOURCE / name).read_text()))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import time\ntime.time()", "time.time"),
        ("import time\nclass A:\n    now = staticmethod(time.monotonic_ns)", "time.monotonic_ns"),
        ("import time as clock\nnow = clock.monotonic", "time.monotonic"),
        ("from time import monotonic\nmonotonic()", "time.monotonic"),
        ("def f():\n    from time import sleep as pause\n    pause(1)", "time.sleep"),
        ("import os\nos.urandom(8)", "os.urandom"),
        ("import os\nf'{os.getpid()}'", "os.getpid"),
        ("from os import uname\nuname()", "os.uname"),
        ("import random\nrandom.random()", "random.random"),
        ("from uuid import uuid4\nuuid4()", "uuid.uuid4"),
        ("import secrets\nsecrets.token_hex()", "secrets.token_hex"),
        ("from threading import Lock, Thread\nThread(target=print)", "threading.Thread"),
        ("import threading\nthreading.Thread(target=print)", "threading.Thread"),
        ("import _thread\n_thread.start_new_thread(print, ())", "_thread.start_new_thread"),
        (
            "from concurrent.futures import ThreadPoolExecutor as P\nP()",
            "concurrent.futures.ThreadPoolExecutor",
        ),
        ("import os\nos.times()", "os.times"),
        ("def f(loop):\n    loop.run_in_executor(None, print)", "run_in_executor"),
        ("from datetime import datetime\ndatetime.now()", "datetime.datetime.now"),
        ("import datetime\ndatetime.datetime.now()", "datetime.datetime.now"),
    ],
)
def test_uses__forbidden_names__are_found(text: str, name: str) -> None:
    assert set(uses(text)) == {name}


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import time\ntime(12)",
        "from threading import Lock\nLock()",
        "class A:\n    time = 1\nA.time",
        "import os\nos.environ",
        "'use time.monotonic()'",
    ],
)
def test_uses__other_names__are_not_found(text: str) -> None:
    assert not set(uses(text))
