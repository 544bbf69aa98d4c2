"""What a decorator must know about the function that it decorates."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal

CallableKind = Literal["function", "coroutine", "generator", "async_generator"]

PLAIN: Final = "function"
COROUTINE: Final = "coroutine"
GENERATOR: Final = "generator"
ASYNC_GENERATOR: Final = "async_generator"


def is_async_callable(function: Any) -> bool:
    """Return whether a call of ``function`` has to be awaited. Accepts partials and callable objects.

    Raise a ``TypeError`` for generator functions: a policy cannot determine when their work ends, and the
    caller may already have used part of the output.
    """
    kind = callable_kind(function)
    if kind in (GENERATOR, ASYNC_GENERATOR):
        raise TypeError(
            f"a generator function cannot be decorated: it has no single result, got {function!r:.100}"
        )
    return kind == COROUTINE


def callable_kind(function: Any) -> CallableKind:
    """Return what a call of ``function`` returns. Accepts partials and callable objects."""
    import inspect  # noqa: PLC0415 - the import costs 10 ms, and only decorators need it

    if not callable(function):
        raise TypeError(f"a decorator needs a callable, got {function!r:.100}")
    target = function
    while isinstance(target, partial):
        target = target.func
    if not (inspect.isroutine(target) or inspect.isclass(target)):
        target = target.__call__
    if inspect.isgeneratorfunction(target):
        return GENERATOR
    if inspect.isasyncgenfunction(target):
        return ASYNC_GENERATOR
    return COROUTINE if inspect.iscoroutinefunction(target) else PLAIN


def require_result(function: Any, result: Any) -> None:
    """Raise a ``TypeError`` if a plain function returned an awaitable, whose work is not done yet.

    Wrappers of coroutine functions return awaitables, as do client methods such as
    ``aiohttp.ClientSession.get``.
    """
    if not hasattr(type(result), "__await__"):
        return
    if hasattr(result, "cr_frame"):
        result.close()  # or Python would warn that it was never awaited
    raise TypeError(
        f"a blocking call cannot await what {function!r:.100} returned, {result!r:.100}: decorate an async "
        "function that awaits it, or use the methods that you await"
    )


def not_awaitable_error(function: Any, result: Any) -> TypeError:
    """Return the error for a function that was called to be awaited and returned a plain result."""
    return TypeError(
        f"cannot await what {function!r:.100} returned, {result!r:.100}: pass an async function, or call a "
        "blocking one in a thread, as in asyncio.to_thread(upstream.sync.call, function)"
    )


def is_coroutine_callable(function: Any) -> bool:
    """Return whether a callable is a coroutine function, or an object with an async ``__call__``."""
    import inspect  # noqa: PLC0415 - as above

    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - the method is inspected, not called
    )


def require_argument(field: str, function: Any, what: str) -> None:
    """Raise a ``TypeError`` unless ``function`` can be called with one argument, which is ``what``."""
    import inspect  # noqa: PLC0415 - as above

    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in without a signature
        return
    try:
        signature.bind(None)
    except TypeError:
        text = f"{field} must be a function of one argument, {what}, got {function!r:.100}"
        raise TypeError(text) from None


def require_plain_function(field: str, function: Any) -> None:
    """Raise a ``TypeError`` unless ``function`` is a callable whose result need not be awaited."""
    if not callable(function):
        raise TypeError(f"{field} must be a function, got {function!r:.100}")
    if is_coroutine_callable(function):
        raise TypeError(f"{field} must be a plain function, got the coroutine function {function!r:.100}")
