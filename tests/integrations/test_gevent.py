"""comporta in a program of greenlets: patched before the import it works, patched later it says so."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from comporta.testing import Server

PATCH = "from gevent import monkey; monkey.patch_all()"

PROGRAM = """
import sys
{before}
from comporta import LimitConfig, TokenBucketLimiter, Upstream
{after}
import gevent

state, ticks = sys.argv[1], []


def tick():
    while True:
        gevent.sleep(0.01)
        ticks.append(1)


clock = gevent.spawn(tick)
waits = TokenBucketLimiter("10/s burst 1", state, "waits")
granted = gevent.joinall([gevent.spawn(waits.sync.acquire, timeout=30) for _ in range(4)], raise_error=True)
assert all(each.value for each in granted)
assert len(ticks) > 5, f"other greenlets ran {{len(ticks)}} times in 0.3 s"

portal = Upstream("portal", limit="1000/s", state=state, max_concurrent=2)
running = []


def call():
    running.append(1)
    gevent.sleep(0.05)
    count = len(running)
    running.pop()
    return count


calls = gevent.joinall([gevent.spawn(portal.sync.call, call) for _ in range(6)], raise_error=True)
assert max(each.value for each in calls) == 2

leased = TokenBucketLimiter(LimitConfig(1000, 1000, lease=True), state, "leased")
assert leased.sync.acquire()
waits.store.close()
print("done")
"""


def run(state: str, *, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM).format(before=before, after=after)
    return subprocess.run(
        [sys.executable, "-c", program, state], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("kind", ["memory", "shared", "redis"])
def test_greenlets__patched_before_the_import__wait_without_blocking_each_other(
    kind: str, shared_state: str, valkey: Server
) -> None:
    states = {"memory": "memory://", "shared": shared_state, "redis": f"{valkey.url}?timeout=5"}
    ran = run(states[kind], before=PATCH)
    assert ran.stdout == "done\n", ran.stderr


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_greenlets__patched_after_the_import__first_wait_says_what_to_do(
    kind: str, shared_state: str
) -> None:
    ran = run(shared_state if kind == "shared" else "memory://", after=PATCH)
    assert ran.returncode == 1
    assert "RuntimeError: gevent patched the thread module after comporta was imported" in ran.stderr
    assert "call gevent.monkey.patch_all() before the first import of comporta" in ran.stderr
