"""Logs an outage of the database when it begins and when it ends, however many requests fail meanwhile."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Final

from comporta.clock import MONOTONIC
from comporta.database.base import Statement
from comporta.errors import DatabaseError

if TYPE_CHECKING:
    from comporta.database.base import Database

PROBE_SECONDS: Final = 1.0

_PING = Statement("SELECT 1")
_LOG = logging.getLogger("comporta.service")


class DatabaseOutage:
    """The outage of one worker's database, if there is one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._failed = 0
        self._probing: asyncio.Task[None] | None = None

    def record(self, error: DatabaseError) -> None:
        """Count a request that failed; log the first one, and wait for the recovery."""
        self._failed += 1
        if self._probing is None:
            _LOG.error("the database is unreachable: %s", error)
            own_context = Context()  # the recovery belongs to no request
            self._probing = asyncio.create_task(self._wait_for_recovery(), context=own_context)

    def close(self) -> None:
        """Stop waiting for the recovery."""
        if self._probing is not None:
            self._probing.cancel()

    async def _wait_for_recovery(self) -> None:
        began = MONOTONIC.now_ns()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if await self._responds():
                break
        seconds = (MONOTONIC.now_ns() - began) / 1e9
        _LOG.warning("the database responds again after %.0f s; requests failed: %d", seconds, self._failed)
        self._failed, self._probing = 0, None

    async def _responds(self) -> bool:
        try:
            await self._database.read_async(_PING, {})
        except DatabaseError:
            return False
        return True
