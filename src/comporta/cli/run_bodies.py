"""Answers that are read whole inside of a call: one that breaks off, or drips, is a failure like any other.

A client reads bodies after its transport has returned, when retries, breaker and time-out have long been told
that all went well. So this transport, the innermost, reads them itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from comporta.errors import ComportaError

_SHOWN_BYTES = 4096
_SHOWN_SECONDS = 1.0
"""How much is read of an answer that is no result, and for how long: only its first words are shown."""

_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")


class BodyTooLongError(ComportaError):
    """An answer that is longer than one wants to keep."""


class WholeAnswers:
    """A transport around ``inner``: each answer within ``seconds``, and not longer than ``bytes_max``."""

    def __init__(self, inner: Any, accepted: frozenset[int], bytes_max: int, seconds: float) -> None:
        self._inner = inner
        self._accepted = accepted
        self._bytes_max = bytes_max
        self._seconds = seconds

    def _keeps(self, status: int) -> bool:
        """Whether an answer of this status is a result."""
        return 200 <= status < 300 or status in self._accepted

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request; returns its answer with all of the body."""
        async with asyncio.timeout(self._seconds):
            response = await self._inner.handle_async_request(request)
            try:
                kept = self._keeps(response.status_code)
                content = await (self._content(response) if kept else _first_words(response))
            finally:
                await response.aclose()
        headers = [
            (name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_WIRE
        ]
        return type(response)(
            response.status_code, headers=headers, content=content, extensions=response.extensions
        )

    async def _content(self, response: Any) -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > self._bytes_max:
                raise BodyTooLongError(f"the answer is longer than {self._bytes_max} bytes")
        return bytes(content)

    async def __aenter__(self) -> WholeAnswers:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._inner.__aexit__(*ended)

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self._inner.aclose()


async def _first_words(response: Any) -> bytes:
    """Read the beginning, as far as it comes: the status alone says what the answer is."""
    content = bytearray()
    with suppress(Exception):
        async with asyncio.timeout(_SHOWN_SECONDS):
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) >= _SHOWN_BYTES:
                    break
    return bytes(content)
