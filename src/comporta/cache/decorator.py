"""Decorated functions: their methods, and the names of their calls in the cache.

Pure: the caches in ``cache.py`` and ``sync_cache.py`` decorate and call them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from comporta.cache.entry import Cached

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class CachedFunction(Protocol[P, T_co]):
    """A coroutine function whose results are cached by its arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]:
        """Return the value, from the cache or from the function."""

    def fetch(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Cached[T_co]]:
        """Return the same as a ``Cached``, with its health."""

    def get(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Cached[T_co] | None]:
        """Return the cached result of a call, however old it is; do not call the function."""

    def delete(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, bool]:
        """Remove the cached result of a call, in all workers; return whether it existed."""


class SyncCachedFunction(Protocol[P, T_co]):
    """A plain function whose results are cached by its arguments; see :class:`CachedFunction`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Return the value, from the cache or from the function."""

    def fetch(self, *args: P.args, **kwargs: P.kwargs) -> Cached[T_co]:
        """Return the same as a ``Cached``, with its health."""

    def get(self, *args: P.args, **kwargs: P.kwargs) -> Cached[T_co] | None:
        """Return the cached result of a call, however old it is; do not call the function."""

    def delete(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Remove the cached result of a call, in all workers; return whether it existed."""


class CallKey(NamedTuple):
    """The names of one call: parameters for the cache, and optionally a readable key and tags."""

    params: dict[str, Any]
    key: str | None
    tags: tuple[str, ...]


class CallKeys:
    """Names the calls of one function.

    ``key`` and ``tags`` are templates in which ``{name}`` stands for an argument.
    """

    def __init__(self, function: Callable[..., Any], key: str | None, tags: Sequence[str]) -> None:
        from inspect import signature  # noqa: PLC0415 - takes 10 ms

        if not callable(function):
            raise TypeError(f"cached must decorate a function, got {function!r:.50}")
        self._signature = signature(function)
        self._name = f"{function.__module__}.{function.__qualname__}"
        self._key = key
        self._tags = tuple(tags)

    def for_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallKey:
        """Return the names of a call; arguments with defaults count as if they were given."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        return CallKey(
            {"function": self._name, "arguments": arguments},
            None if self._key is None else self._key.format_map(arguments),
            tuple(tag.format_map(arguments) for tag in self._tags),
        )


def with_methods(
    call: Callable[..., Any], function: Callable[..., Any], **methods: Callable[..., Any]
) -> Any:
    """Return ``call`` with the name and the documentation of ``function``, and with more methods."""
    wrapped: Any = wraps(function)(call)
    for name, method in methods.items():
        setattr(wrapped, name, method)
    return wrapped
