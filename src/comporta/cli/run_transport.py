"""A transport that reads the whole body of a response inside the call.

A client reads bodies after its transport has returned. By then the upstream has recorded a success, and a
body that breaks off or arrives too slowly is neither retried nor counted. This transport, the innermost,
reads the body itself, so that such a response is a failure like any other.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from comporta.errors import ComportaError

_PREVIEW_BYTES = 4096
_PREVIEW_SECONDS = 1.0
"""How much of an answer that is not a result is read, and for how long: messages show only its start."""

_TRANSFER_HEADERS = ("content-encoding", "content-length", "transfer-encoding")


class BodyTooLongError(ComportaError):
    """The answer is longer than ``--max-body``."""


class BufferedTransport:
    """Wraps ``inner``: each answer must be complete within ``seconds`` and at most ``bytes_max`` long."""

    def __init__(self, inner: Any, accepted: frozenset[int], bytes_max: int, seconds: float) -> None:
        self._inner = inner
        self._accepted = accepted
        self._bytes_max = bytes_max
        self._seconds = seconds

    def _is_result(self, status: int) -> bool:
        """Whether an answer with this status is a result."""
        return 200 <= status < 300 or status in self._accepted

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request and return the response with its whole body."""
        async with asyncio.timeout(self._seconds):
            response = await self._inner.handle_async_request(request)
            try:
                is_result = self._is_result(response.status_code)
                content = await (self._read_body(response) if is_result else _read_preview(response))
            finally:
                await response.aclose()
        headers = [
            (name, value) for name, value in response.headers.multi_items() if name not in _TRANSFER_HEADERS
        ]
        return type(response)(
            response.status_code, headers=headers, content=content, extensions=response.extensions
        )

    async def _read_body(self, response: Any) -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > self._bytes_max:
                raise BodyTooLongError(f"the answer is longer than {self._bytes_max} bytes (--max-body)")
        return bytes(content)

    async def __aenter__(self) -> BufferedTransport:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self._inner.__aexit__(*ended)

    async def aclose(self) -> None:
        """Close the wrapped transport."""
        await self._inner.aclose()


async def _read_preview(response: Any) -> bytes:
    """Read the start of the body, ignoring errors: the status alone decides what the answer means."""
    content = bytearray()
    with suppress(Exception):
        async with asyncio.timeout(_PREVIEW_SECONDS):
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) >= _PREVIEW_BYTES:
                    break
    return bytes(content)
