"""The step of ``comporta run``: one call for an item, by an upstream's rules, and a row of what came back.

"Not now" is no answer: an open circuit, a limit, a 429 or a 503 are waited out, for as long as one has
patience. Anything else that is no success was an answer to this very item, and the item is given up: it can be
looked at, and fed in again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from comporta.cli.run_address import Address, fields_of
from comporta.errors import ComportaError, RefusedError
from comporta.retry.retry import retry_after_of

NOT_NOW = (429, 503)
COLUMNS = ("line", "input", "url", "status", "body", "attempts", "seconds")

_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 60.0
_SHOWN_CHARS = 200


class HttpStatusError(ComportaError):
    """An answer that is no success; ``retry_after`` is what it asks for."""

    def __init__(self, status: int, text: str, retry_after: float = 0.0) -> None:
        super().__init__(status, text, retry_after)
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.args[1]}".strip()


class BodyTooLongError(ComportaError):
    """An answer that is longer than one wants to keep."""


class Calls:
    """Calls an address for each item, with a client whose transport is an upstream's."""

    def __init__(
        self,
        client: Any,
        address: Address,
        *,
        method: str,
        send_item: bool,
        accepted: frozenset[int],
        patience: float,
        body_bytes_max: int,
        parsed: bool,
    ) -> None:
        self._client = client
        self._address = address
        self._method = method
        self._send_item = send_item
        self._accepted = accepted
        self._patience = patience
        self._body_bytes_max = body_bytes_max
        self._parsed = parsed

    async def __call__(self, item: Any) -> Mapping[str, Any]:
        """Call, as soon as it may be; returns the row."""
        url = self._address.of(item)
        began = time.monotonic()
        attempts = 0
        while True:
            try:
                status, body, made = await self._answer(url, item)
            except (RefusedError, HttpStatusError) as error:
                attempts += 1
                if not self._is_not_now(error):
                    raise
                await self._wait_out(error, began)
            else:
                return self._row(item, url, status, body, attempts + made, time.monotonic() - began)
