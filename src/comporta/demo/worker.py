"""The application as the demo's workers have it.

It is the real one, with accounts to analyse and a way to break the portals from the page.
"""

from __future__ import annotations

import asyncio
import os
import random

from fastapi import FastAPI

from comporta.demo.plan import CONTROL_VARIABLE
from comporta.service.app import create_app
from comporta.service.batch.opening import BatchPlugs

_SECONDS = (0.1, 0.9)
_FAILING = 0.04


class AccountClosedError(Exception):
    """What becomes of some accounts."""


def create() -> FastAPI:
    """Return the application for one worker."""
    plugs = BatchPlugs(processor=analyse, is_digital=lambda _: True)
    return create_app(plugs=plugs, demo=os.environ[CONTROL_VARIABLE])


async def analyse(account: str) -> str:
    """Take a while over an account, and come to a result."""
    await asyncio.sleep(random.uniform(*_SECONDS))
    if random.random() < _FAILING:
        raise AccountClosedError(f"account {account} is closed")
    return f"{account}: {random.randint(1, 40)} offers, {random.randint(0, 3)} won"
