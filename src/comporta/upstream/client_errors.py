"""Refusals and time-outs as exceptions of the HTTP client through which a call was made.

Code around a client catches that client's exceptions: ``except httpx2.TransportError``. A refusal that a
transport raises is one of those as well as a ``CircuitOpenError`` or ``LimitReachedError``. The classes are
made from the two when they are first needed, so that this module imports no client.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from comporta.errors import RefusedError

_PLAIN = (str, int, float, type(None))
"""What an error keeps when it is pickled."""


def client_error(error: Exception, base: type[Exception], **attributes: Any) -> Exception:
    """Return ``error`` as an exception that is also a ``base``; raise it ``from error.__cause__``.

    ``attributes`` are those that errors of that client have: its ``request``.
    """
    if isinstance(error, base):
        return error
    made = _restore(type(error), base, error.args, vars(error))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def is_ours(error: Exception) -> bool:
    """Whether a transport must raise an error in its client's form: a refusal, or the end of the time."""
    return isinstance(error, RefusedError) or type(error) is TimeoutError


@cache
def _combined_class(kind: Any, base: Any) -> type[Exception]:
    """Return the class of errors that are both, under the name of the first."""
    if issubclass(base, kind):
        combined: type[Exception] = base
        return combined

    def reduce(self: Exception) -> tuple[Any, ...]:
        # a request may hold hooks or a stream, so that it is left behind, as credentials in its headers are
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
    """Make an error of both classes; also in a process that unpickles it and has not made the class."""
    classes: Any = (kind, base)
    made = _combined_class(*classes)
    error = made.__new__(made)  # the constructors of the two expect different arguments
    error.args = args
    vars(error).update(attributes)
    return error
