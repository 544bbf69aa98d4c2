"""The ``on_refusal`` option: what a refused call returns instead of raising.

Independent of policies: it receives the error that the call would otherwise raise.
"""

from __future__ import annotations

from typing import Any, Final

from comporta.errors import RefusedError
from comporta.signatures import is_coroutine_callable, require_argument


class _Raise:
    """The default of ``on_refusal``; any other value, ``None`` included, is an answer."""

    def __repr__(self) -> str:
        return "RAISE"


RAISE: Final = _Raise()
"""A refused call raises."""


class RefusalHandler:
    """Answers refused calls with a value, or with the result of a function of the refusal."""

    __slots__ = ("_function", "_is_async", "_value")

    def __init__(self, on_refusal: Any) -> None:
        if isinstance(on_refusal, BaseException) or _is_error_type(on_refusal):
            raise TypeError(
                "on_refusal must be a value or a function of the refusal, "
                f"got {on_refusal!r:.100}: to raise another error, pass a function that raises it"
            )
        self._function = on_refusal if callable(on_refusal) else None
        self._is_async = False
        self._value = on_refusal
        if self._function is not None:
            require_argument("on_refusal", self._function, "the refusal")
            self._is_async = is_coroutine_callable(self._function)

    def answer(self, refusal: RefusedError, answer_type: type[Any] = object) -> Any:
        """Return the answer to a blocking call; raise the refusal if the answer has another type."""
        if self._is_async:
            raise TypeError(
                "on_refusal must be a plain function, got a coroutine function: "
                "a blocking call cannot await it"
            ) from refusal
        answer = self._value if self._function is None else self._function(refusal)
        return _require_type(answer, answer_type, refusal)

    async def answer_async(self, refusal: RefusedError, answer_type: type[Any] = object) -> Any:
        """Return the answer to an async call; raise the refusal if the answer has another type."""
        answer = self._value if self._function is None else self._function(refusal)
        return _require_type(await answer if self._is_async else answer, answer_type, refusal)


def refusal_handler(on_refusal: Any) -> RefusalHandler | None:
    """Return the handler for an ``on_refusal`` option; ``None`` if refused calls raise."""
    return None if on_refusal is RAISE else RefusalHandler(on_refusal)


class AnswerRefusal:
    """Effect: answer a refused call."""

    __slots__ = ("_arguments", "_handler")

    def __init__(self, handler: RefusalHandler, refusal: RefusedError, answer_type: type[Any]) -> None:
        self._handler = handler
        self._arguments = refusal, answer_type

    def block(self) -> Any:
        """Return the answer."""
        return self._handler.answer(*self._arguments)

    async def wait(self) -> Any:
        """Return the answer, awaited if the function is a coroutine function."""
        return await self._handler.answer_async(*self._arguments)


def _require_type(answer: Any, answer_type: type[Any], refusal: RefusedError) -> Any:
    if not isinstance(answer, answer_type):
        raise refusal
    return answer


def _is_error_type(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)
