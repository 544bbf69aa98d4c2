"""Lets the accounts of one worker run together, or one of them alone.

An account that may have killed two workers runs alone, so that the death of a third worker proves that this
account was the cause. This module knows nothing about accounts, jobs or chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from comporta.clock import MONOTONIC

ALONE_WAIT_SECONDS: Final = 10.0
"""How long an account waits to be alone; then it starts alongside accounts that are still running."""


class AccountGate:
    """Counts the running accounts, and admits no others while one runs alone or waits to."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = asyncio.Lock()
        self._idle = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        """Run alongside other accounts; wait while one runs alone or waits to."""
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
        """Run with no other account; wait up to :data:`ALONE_WAIT_SECONDS` for the others to end."""
        async with self._alone:
            self._open.clear()
            try:
                self._idle.clear()
                if self._running:
                    await MONOTONIC.wait_async(self._idle, ALONE_WAIT_SECONDS)
                yield
            finally:
                self._open.set()
