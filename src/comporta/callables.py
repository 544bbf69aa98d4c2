"""What decorators have to know of what they are given: whether it is awaited, and whether it yields."""

from __future__ import annotations

from functools import partial
from typing import Any


def is_awaited(function: Any) -> bool:
    """Whether what a call returns has to be awaited; also of partials, and of objects that can be called.

    What yields is refused: nobody knows when it is over, and some of it may have been used.
    """
    import inspect  # noqa: PLC0415 - costs 10 ms, and only decorating needs it

    if not callable(function):
        raise TypeError(f"only what can be called can be decorated, got {function!r:.100}")
    runs = function
    while isinstance(runs, partial):
        runs = runs.func
    if not (inspect.isroutine(runs) or inspect.isclass(runs)):
        runs = runs.__call__
    if inspect.isgeneratorfunction(runs) or inspect.isasyncgenfunction(runs):
        raise TypeError(f"what yields cannot be decorated: it has no one result, got {function!r:.100}")
    return inspect.iscoroutinefunction(runs)
