"""Refusals and time-outs as exceptions of the HTTP client through which a call was made.

Code around a client catches that client's exceptions: ``except httpx2.TransportError``. A refusal that a
transport raises is one of those as well as a ``CircuitOpenError`` or ``LimitReachedError``. A class that
combines the two is created when it is first needed, so that this module imports no client.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from comporta.errors import RefusedError

_PLAIN = (str, int, float, type(None))
"""The types of the attributes that an error keeps when it is pickled."""


def client_error(error: Exception, base: type[Exception], **attributes: Any) -> Exception:
    """Return ``error`` as an exception that is also a ``base``; raise it ``from error.__cause__``.

    ``attributes`` are those that errors of that client have, such as ``request``.
    """
    if isinstance(error, base):
        return error
    made = _restore(type(error), base, error.args, vars(error))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def is_ours(error: Exception) -> bool:
    """Whether a transport must raise an error in its client's form: a refusal or a time-out."""
    return isinstance(error, RefusedError) or type(error) is TimeoutError


@cache
def _combined_class(kind: Any, base: Any) -> type[Exception]:
    """Return a class that derives from both classes and has the name of the first."""
    if issubclass(base, kind):
        combined: type[Exception] = base
        return combined

    def reduce(self: Exception) -> tuple[Any, ...]:
        # a request may hold hooks, a stream or credentials in its headers, so it is not pickled
        attributes = {name: v if isinstance(v, _PLAIN) else None for name, v in vars(self).items()}
        return _restore, (kind, base, self.args, attributes)

    return type(
        kind.__name__,
        (kind, base),
        {"__module__": __name__, "__doc__": kind.__doc__, "__reduce__": reduce},
    )


def _restore(
    kind: type[Exception], base: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]
) -> Exception:
    """Create an error of both classes, even in a process that unpickles it and has not created the class."""
    classes: Any = (kind, base)
    made = _combined_class(*classes)
    error = made.__new__(made)  # the constructors of the two expect different arguments
    error.args = args
    vars(error).update(attributes)
    return error
