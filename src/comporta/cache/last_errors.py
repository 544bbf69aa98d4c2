"""The last error of each source that failed in this process, as the cause of later refusals.

It keeps copies without tracebacks, which would keep the local variables of every frame in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress

ERRORS_MAX = 100
"""How many errors are kept; the oldest are dropped first."""


class LastErrors:
    """The last error for each of at most ``ERRORS_MAX`` keys."""

    __slots__ = ("_errors",)

    def __init__(self) -> None:
        self._errors: OrderedDict[str, Exception] = OrderedDict()

    def record(self, key: str, error: Exception) -> None:
        """Keep a copy of an error as the last one of its key."""
        copied = _copy(error)
        if copied is None:
            return
        self._errors[key] = copied
        with suppress(KeyError):  # another thread removed it
            self._errors.move_to_end(key)
            if len(self._errors) > ERRORS_MAX:
                self._errors.popitem(last=False)

    def get(self, key: str) -> Exception | None:
        """Return a copy of the last error of a key; ``None`` if it was dropped, or was another process's."""
        error = self._errors.get(key)
        return None if error is None else _copy(error)


def _copy(error: Exception) -> Exception | None:
    """Return the same error without traceback, cause and context; ``None`` if its class forbids that.

    ``__init__`` is not called: in many libraries it takes other arguments than ``args``.
    """
    with suppress(Exception):
        args = (
            OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args
        )  # with its file names
        copied = type(error).__new__(type(error), *args)
        copied.__dict__.update(error.__dict__)
        return copied
    return None
