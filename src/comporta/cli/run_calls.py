"""The step of ``comporta run``: one call for an item, by an upstream's rules, and a row of what came back.

"Not now" is no answer: an open circuit, a limit, a 429 or a 503 are waited out, for as long as one has
patience. Anything else that is no success was an answer to this very item, and the item is given up: it can
be looked at, and fed in again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from math import isfinite
from typing import Any

from comporta.chance import uniform
from comporta.cli.run_address import Address, fields_of
from comporta.errors import ComportaError, RefusedError
from comporta.headers import pause_told
from comporta.pipeline.strict_json import dumped
from comporta.retry import IDEMPOTENT_METHODS
from comporta.retry.retry import retry_after_of
from comporta.upstream.report import last_call

COLUMNS = ("input", "url", "status", "body", "attempts", "seconds")
"""What a row has, beside the number of its line."""

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


class Calls:
    """Calls an address for each item, with a client whose transport is an upstream's around whole answers."""

    def __init__(
        self,
        client: Any,
        address: Address,
        *,
        method: str,
        send_item: bool,
        accepted: frozenset[int],
        patience: float,
        parsed: bool,
    ) -> None:
        self._client = client
        self._address = address
        self._method = method
        self._send_item = send_item
        self._accepted = accepted
        self._patience = patience
        self._parsed = parsed
        self.retries = 0

    async def __call__(self, item: Any) -> Mapping[str, Any]:
        """Call, as soon as it may be; returns the row."""
        url = self._address.of(item)
        began = time.monotonic()
        while True:
            try:
                response = await self._answer(url, item)
            except (RefusedError, HttpStatusError) as error:
                if not self._is_not_now(error):
                    raise
                await self._wait_out(error, began)
            else:
                return self._row(item, url, response, time.monotonic() - began)

    async def _answer(self, url: str, item: Any) -> Any:
        before = last_call()
        body = {"json": dict(fields_of(item))} if self._send_item else {}
        try:
            response = await self._client.request(self._method, url, **body)
        finally:
            made = last_call()
            if made is not None and made is not before:  # or it was refused before it was begun
                self.retries += max(0, made.attempts - 1)
        if not (response.is_success or response.status_code in self._accepted):
            text = response.content.decode("utf-8", "replace")[:_SHOWN_CHARS]
            told = pause_told(response.headers, time.time())
            raise HttpStatusError(response.status_code, text, told or 0.0)
        return response

    def _is_not_now(self, error: ComportaError) -> bool:
        """Whether it was not done, and may be later. What a 503 did to a POST, nobody knows."""
        status = getattr(error, "status", None)
        return status in (None, 429) or (status == 503 and self._method in IDEMPOTENT_METHODS)

    async def _wait_out(self, error: ComportaError, began: float) -> None:
        """Wait as long as is asked for, or end it where patience does."""
        left = self._patience - (time.monotonic() - began)
        if left <= 0:
            raise error
        wait = min(max(retry_after_of(error), _WAIT_SECONDS_MIN), _WAIT_SECONDS_MAX)
        await asyncio.sleep(min(wait, left) * uniform(1.0, 1.25))

    def _row(self, item: Any, url: str, response: Any, seconds: float) -> Mapping[str, Any]:
        text = response.content.decode(response.encoding or "utf-8", "replace")
        return {
            "input": item if self._parsed else dumped(item, ensure_ascii=False),
            "url": url,
            "status": response.status_code,
            "body": _parsed(text) if self._parsed else text,
            "attempts": response.extensions["comporta"].attempts,
            "seconds": round(seconds, 3),
        }


def _parsed(text: str) -> Any:
    """Return what JSON says, or the text if it is none: results are JSON lines, and need no JSON in JSON.

    With numbers that no JSON has, or that are too large to be kept as one, it is text: nothing is lost.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text:.50} is no number that can be kept")
    return number
