"""What is done for accounts in served processes of these tests."""

from __future__ import annotations

import asyncio
import os
import time
from asyncio.events import Handle
from contextlib import ExitStack

from tests.support import nothing_blocks

from comporta.service.batch.whitelist import Whitelist

COMPUTED_SECONDS = 0.1


async def greet(account: str) -> str:
    """Take a moment, as long as the test says."""
    await asyncio.sleep(float(os.environ.get("GREETING_SECONDS", "0")))
    return f"hello {account}"


class Watched:
    """Takes a moment, in a process with a slow whitelist; for some accounts it does something else.

    From ``watch`` on, what blocks on the event loop raises an error, and ``report`` says for how many seconds
    the longest step of the loop has computed, in the processor's time: what else the machine does meanwhile
    is not counted. ``block`` and ``compute`` are what is not to be. ``rest`` ends it.
    """

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._longest = 0.0
        _slow_down_whitelist(0.05)

    async def __call__(self, account: str) -> str:
        if account == "watch":
            self._watch()
        elif account == "block":
            time.sleep(0.001)  # noqa: ASYNC251 - on purpose
        elif account == "compute":
            _compute(COMPUTED_SECONDS)
        elif account == "rest":
            self._ends.close()
        elif account != "report":
            await asyncio.sleep(0.005)
        return str(self._longest)

    def _watch(self) -> None:
        plain = Handle._run

        def timed(handle: Handle) -> None:
            began = time.thread_time()
            plain(handle)
            self._longest = max(self._longest, time.thread_time() - began)

        setattr(Handle, "_run", timed)  # noqa: B010 - there is no other place at which all steps pass
        self._ends.callback(setattr, Handle, "_run", plain)
        self._ends.enter_context(nothing_blocks())


def _slow_down_whitelist(seconds: float) -> None:
    quick = Whitelist.is_digital

    def slow(whitelist: Whitelist, user_id: str) -> bool:
        time.sleep(seconds)
        return quick(whitelist, user_id)

    setattr(Whitelist, "is_digital", slow)  # noqa: B010 - plain assignment is none to the type checker


def _compute(seconds: float) -> None:
    began = time.thread_time()
    while time.thread_time() - began < seconds:
        pass
