"""What is done for accounts in served processes of these tests."""

from __future__ import annotations

import asyncio


async def greet(account: str) -> str:
    """Take a moment."""
    await asyncio.sleep(0.003)
    return f"hello {account}"
