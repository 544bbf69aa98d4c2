"""Lets the accounts of one worker run together, or one of them alone.

An account that may have killed two workers runs alone, so that the death of the third worker says which
account it was. It knows nothing about accounts, jobs or chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from comporta.clock import MONOTONIC

ALONE_WAIT_SECONDS: Final = 10.0
"""How long an account waits to be alone; then it starts beside accounts that still run."""


class AccountGate:
    """Counts the accounts that run, and admits no further ones while one is to run alone."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = asyncio.Lock()
        self._idle = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Run beside other accounts; wait while one is to run alone."""
        while not self._open.is_set():
            await self._open.wait()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Run with no other account; wait up to :data:`ALONE_WAIT_SECONDS` for those that run."""
        async with self._alone:
            self._open.clear()
            try:
                self._idle.clear()
                if self._running:
                    await MONOTONIC.wait_async(self._idle, ALONE_WAIT_SECONDS)
                yield
            finally:
                self._open.set()
