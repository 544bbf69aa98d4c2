"""The bodies of httpx2's and httpx's responses, read through an ``OpenBody``.

The transports combine each class with the stream class of their package, which only declares the methods.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from comporta.upstream.body import OpenBody, ReadTimer


class BodyStream:
    """The body of a response; ``body`` is set when the caller gets the response."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._parts = iter(inner)
        self._read: list[bytes] = []
        self.body: OpenBody | None = None

    @property
    def content(self) -> bytes:
        """What was read ahead."""
        return b"".join(self._read)

    def read_ahead(self, size: int, timer: ReadTimer) -> bool:
        """Read until the end, or more than ``size`` bytes; return whether that was all."""
        try:
            for part in self._parts:
                self._read.append(part)
                size -= len(part)
                if size < 0:
                    return False
                timer.require_time()
        except BaseException:
            self.close()
            raise
        self.close()
        return True

    def __iter__(self) -> Iterator[bytes]:
        assert self.body is not None  # noqa: S101 - a response that the caller has got
        yield from self._read
        while True:
            try:
                part = self.body.read(self._parts.__next__)
            except StopIteration:
                return
            except BaseException:
                self._inner.close()  # as the client does after an error of the connection
                raise
            yield part

    def close(self) -> None:
        """Close the wrapped stream and conclude the call."""
        try:
            self._inner.close()
        finally:
            if self.body is not None:
                self.body.finish()


class AsyncBodyStream:
    """The body of a response; ``body`` is set when the caller gets the response."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._parts = aiter(inner)
        self._read: list[bytes] = []
        self.body: OpenBody | None = None

    @property
    def content(self) -> bytes:
        """What was read ahead."""
        return b"".join(self._read)

    async def read_ahead(self, size: int) -> bool:
        """Read until the end, or more than ``size`` bytes; return whether that was all."""
        try:
            async for part in self._parts:
                self._read.append(part)
                size -= len(part)
                if size < 0:
                    return False
        except GeneratorExit:  # a closed coroutine cannot await
            raise
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        return True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert self.body is not None  # noqa: S101 - a response that the caller has got
        for part in self._read:
            yield part
        while True:
            try:
                part = await self.body.read_async(self._parts.__anext__)
            except StopAsyncIteration:
                return
            yield part

    async def aclose(self) -> None:
        """Close the wrapped stream and conclude the call."""
        try:
            if isinstance(self._parts, AsyncGenerator):
                with suppress(RuntimeError):  # another task is reading it
                    await self._parts.aclose()
            await self._inner.aclose()
        finally:
            if self.body is not None:
                await self.body.finish_async()
