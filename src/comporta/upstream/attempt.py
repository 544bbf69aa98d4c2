"""One attempt at the user's function, as an effect of a flow. Knows no policy except the time-out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final

from comporta.client_answers import response_of
from comporta.flow import MissingLoopError
from comporta.outcome import PLAIN_TYPES
from comporta.retry.retry import FailedAttempt
from comporta.signatures import not_awaitable_error, require_result
from comporta.timeouts import Timeouts

_NOT_CALLED: Final = object()


class TimedAttempt:
    """Effect: call a function, and if it is awaited, end it at the time-out. Exceptions are returned.

    A blocking function cannot be interrupted from outside: it needs a time-out of its own. The only subclass,
    the call that makes the attempt, sets the attributes.
    """

    __slots__ = ("_arguments", "_function", "_keywords", "_timeouts")

    _function: Callable[..., Any]
    _arguments: tuple[Any, ...]
    _keywords: dict[str, Any]
    _timeouts: Timeouts | None

    def block(self) -> Any:
        """Call the function."""
        try:
            answer = self._function(*self._arguments, **self._keywords)
            if type(answer) not in PLAIN_TYPES:
                require_result(self._function, answer)
        except Exception as error:
            return FailedAttempt(error)
        return answer

    async def wait(self) -> Any:
        """Call and await the function, within the time-out."""
        awaitable: Any = _NOT_CALLED
        try:
            if self._timeouts is None:
                awaitable = self._function(*self._arguments, **self._keywords)
                return await awaitable
            timeout = self._timeouts.start()
            try:
                awaitable = self._function(*self._arguments, **self._keywords)
                answer = await awaitable
            except BaseException as error:
                timeout.finish(error)
                raise
            timeout.finish()
            return answer
        except MissingLoopError:
            raise  # an error of the program, which must not count against the upstream
        except TypeError as error:
            if awaitable is _NOT_CALLED or isawaitable(awaitable):
                return FailedAttempt(error)
            return FailedAttempt(not_awaitable_error(self._function, awaitable))
        except Exception as error:
            return FailedAttempt(error)


class CloseResponse:
    """Effect: close a response that the caller will not get, so that its connection can be reused.

    An object that does not look like an HTTP response is not closed.
    """

    __slots__ = ("_response",)

    def __init__(self, response: Any) -> None:
        self._response: Any = response if response_of(response) is not None else None

    def block(self) -> None:
        """Close the response."""
        with suppress(Exception):  # the response is not used any more
            self._response.close()

    async def wait(self) -> None:
        """Close the response."""
        with suppress(Exception):  # as above
            await _await_if_needed(getattr(self._response, "aclose", None) or self._response.close)


async def _await_if_needed(close: Callable[[], Any]) -> None:
    """Call ``close``, which may be a function or a coroutine function."""
    closed = close()
    if hasattr(closed, "__await__"):
        await closed
