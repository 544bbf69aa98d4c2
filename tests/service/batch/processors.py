"""Processors for the served processes of these tests."""

from __future__ import annotations

import asyncio
import os
import time
from asyncio.events import Handle
from contextlib import ExitStack

from tests.support import fail_on_blocking_calls

from comporta.service.batch.whitelist import Whitelist

COMPUTED_SECONDS = 0.1


async def greet(account: str) -> str:
    """Wait for as long as the test configures."""
    await asyncio.sleep(
        float(os.environ.get("GREETING_SECONDS", "0"))
    )  # sleeps: the processor takes this long
    return f"hello {account}"


class WatchedProcessor:
    """Waits a moment, in a process with a slow whitelist; some accounts are commands.

    After ``watch``, a blocking call on the event loop raises an error, and ``report`` returns the CPU seconds
    of the longest step of the loop, which other load on the machine does not affect. ``block`` and
    ``compute`` violate both, to check the check. ``rest`` ends the watch.
    """

    def __init__(self) -> None:
        self._exit_stack = ExitStack()
        self._longest = 0.0
        _slow_down_whitelist(0.05)

    async def __call__(self, account: str) -> str:
        if account == "watch":
            self._watch()
        elif account == "block":
            time.sleep(0.001)  # noqa: ASYNC251  # sleeps: blocks the event loop on purpose
        elif account == "compute":
            _compute(COMPUTED_SECONDS)
        elif account == "rest":
            self._exit_stack.close()
        elif account != "report":
            await asyncio.sleep(0.005)  # sleeps: the processor takes this long
        return str(self._longest)

    def _watch(self) -> None:
        plain = Handle._run

        def timed(handle: Handle) -> None:
            began = time.thread_time()
            plain(handle)
            self._longest = max(self._longest, time.thread_time() - began)

        setattr(Handle, "_run", timed)  # noqa: B010 - every step of the loop passes here
        self._exit_stack.callback(setattr, Handle, "_run", plain)
        self._exit_stack.enter_context(fail_on_blocking_calls())


def _slow_down_whitelist(seconds: float) -> None:
    quick = Whitelist.is_digital

    def slow(whitelist: Whitelist, user_id: str) -> bool:
        time.sleep(seconds)  # sleeps: the whitelist takes this long
        return quick(whitelist, user_id)

    setattr(Whitelist, "is_digital", slow)  # noqa: B010 - the type checker rejects an assignment


def _compute(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
