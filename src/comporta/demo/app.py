"""The application that the demo's workers serve.

It is the application of ``comporta serve`` plus a simulated account analysis and the address at which the
dashboard can break the portals.
"""

from __future__ import annotations

import asyncio
import os
import random

from fastapi import FastAPI

from comporta.demo.config import CONTROL_VARIABLE
from comporta.service.app import create_app
from comporta.service.batch.factory import BatchComponents

_ANALYSIS_SECONDS = (0.1, 0.9)
_FAILURE_SHARE = 0.04


class AccountClosedError(Exception):
    """The simulated analysis failed because the account is closed."""


def create() -> FastAPI:
    """Return the application for one worker."""
    plugs = BatchComponents(processor=analyse, is_digital=lambda _: True)
    return create_app(batch_components=plugs, demo_url=os.environ[CONTROL_VARIABLE])


async def analyse(account: str) -> str:
    """Simulate the analysis of an account: wait a random time, then fail or return a result."""
    await asyncio.sleep(random.uniform(*_ANALYSIS_SECONDS))
    if random.random() < _FAILURE_SHARE:
        raise AccountClosedError(f"account {account} is closed")
    return f"{account}: {random.randint(1, 40)} offers, {random.randint(0, 3)} won"
