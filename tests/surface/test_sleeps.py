"""Tests wait for conditions, not for fixed times.

A fixed sleep makes a test slow, and the test still fails on a machine that is slower than expected. Three
kinds of sleeps are allowed: ``sleep(0)``, which lets other coroutines run; a sleep in a loop that polls for a
condition until a deadline; and a sleep with a comment in its line that states the reason, for example
``# sleeps: the processor under test takes this long``. Tests in the folders ``EXEMPT`` measure real time and
may sleep.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
EXEMPT = {"outages", "processes", "soak"}

_REASON = re.compile(r"# sleeps: \w+")
_DEADLINE = re.compile(r"deadline|monotonic|\.time\(\)|perf_counter|\btimeout\(|wait_for\(|\bwithin\(")


def is_sleep(node: ast.AST) -> bool:
    """Return whether a node is a call of ``sleep`` with another argument than 0."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    name = ast.unparse(node.func)
    zero = isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
    return name in ("sleep", "time.sleep", "asyncio.sleep") and not zero


def has_deadline(*nodes: ast.AST) -> bool:
    """Return whether some code mentions a deadline."""
    return any(_DEADLINE.search(ast.unparse(node)) for node in nodes)


def polls(ancestors: list[ast.AST]) -> bool:
    """Return whether a node is in a ``while`` loop, of the same function, that ends at a deadline.

    The loop may compare times itself, or be in a ``with`` block that limits its time.
    """
    in_loop = False
    for node in reversed(ancestors):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        if isinstance(node, ast.While):
            in_loop = True
            if has_deadline(node):
                return True
        if in_loop and isinstance(node, ast.With | ast.AsyncWith) and has_deadline(*node.items):
            return True
    return False


def fixed_sleeps(source: str) -> Iterator[int]:
    """Yield the lines of a module with a sleep that the rule does not allow."""
    lines = source.splitlines()
    pending: list[tuple[ast.AST, list[ast.AST]]] = [(ast.parse(source), [])]
    while pending:
        node, ancestors = pending.pop()
        pending += [(child, [*ancestors, node]) for child in ast.iter_child_nodes(node)]
        if is_sleep(node) and not polls(ancestors):
            assert isinstance(node, ast.Call)
            if not any(_REASON.search(line) for line in lines[node.lineno - 1 : node.end_lineno]):
                yield node.lineno


def test_tests__sleep_for_a_fixed_time__only_for_a_stated_reason() -> None:
    paths = [path for path in sorted(TESTS.rglob("*.py")) if path.relative_to(TESTS).parts[0] not in EXEMPT]
    assert [
        f"tests/{path.relative_to(TESTS)}:{number}"
        for path in paths
        for number in sorted(fixed_sleeps(path.read_text("utf-8")))
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "asyncio.sleep(0)",
        "time.sleep(1)  # sleeps: the processor under test takes this long",
        "while not done():\n    assert time.monotonic() < deadline\n    time.sleep(0.01)",
        "with within(9):\n    while not done():\n        time.sleep(1)",
        "clock.sleep(1)",
    ],
)
def test_fixed_sleeps__allowed_sleep__is_not_reported(source: str) -> None:
    assert list(fixed_sleeps(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(0.1)",
        "asyncio.sleep(seconds)",
        "time.sleep(1)  # it may take a while",
        "while True:\n    time.sleep(1)",
        "while time.monotonic() < deadline:\n    def f():\n        time.sleep(1)",
    ],
)
def test_fixed_sleeps__sleep_without_a_reason__is_reported(source: str) -> None:
    assert len(list(fixed_sleeps(source))) == 1
