"""What is done for accounts in served processes of these tests."""

from __future__ import annotations

import asyncio
import os


async def greet(account: str) -> str:
    """Take a moment, as long as the test says."""
    await asyncio.sleep(float(os.environ.get("GREETING_SECONDS", "0")))
    return f"hello {account}"
