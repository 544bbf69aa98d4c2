"""A try at the user's own call, as an effect that a flow can want done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from comporta.retry.retry import Failed
from comporta.timeouts import Timeouts
from comporta.upstream.verdict import http_response


class Attempt(Protocol):
    """What is tried, as often as it takes; it answers with ``Failed`` where it fails."""

    def block(self) -> Any:
        """Try it, holding the thread."""

    async def wait(self) -> Any:
        """Try it, holding nothing."""


class Calling:
    """Effect: call a function; awaiting, for so many seconds at the most. A failure is an answer.

    A blocking call cannot be interrupted from outside: it ends when its own time-out says so.
    """

    __slots__ = ("_arguments", "_function", "_keywords", "_timeouts")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        timeouts: Timeouts | None,
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._keywords = keywords
        self._timeouts = timeouts

    def block(self) -> Any:
        """Call it."""
        try:
            return self._function(*self._arguments, **self._keywords)
        except Exception as error:
            return Failed(error)

    async def wait(self) -> Any:
        """Await it, within the time there is."""
        try:
            if self._timeouts is None:
                return await self._function(*self._arguments, **self._keywords)
            with self._timeouts.limit():
                return await self._function(*self._arguments, **self._keywords)
        except Exception as error:
            return Failed(error)


class Discard:
    """Effect: close a response that nobody will read, so that its connection is free for the next try.

    What does not look like a response is left alone: it may be anything, and somebody else's.
    """

    __slots__ = ("_response",)

    def __init__(self, response: Any) -> None:
        self._response: Any = response if http_response(response) is not None else None

    def block(self) -> None:
        """Close it, if it is one."""
        with suppress(Exception):  # it is of no use to anybody in any case
            self._response.close()

    async def wait(self) -> None:
        """Close it, if it is one."""
        with suppress(Exception):  # see above
            await _waited_for(getattr(self._response, "aclose", None) or self._response.close)


async def _waited_for(close: Callable[[], Any]) -> None:
    """Call what may be a coroutine function, or plain."""
    closed = close()
    if hasattr(closed, "__await__"):
        await closed
