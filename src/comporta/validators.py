"""Validators for arguments and settings, with uniform errors: the name, the range and the value.

A wrong type raises a ``TypeError``, a value out of range a ``ValueError``. Each function returns the value,
so that a call can be used in place of the value. This module does not know what the values are for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf, isfinite
from typing import Any, cast

ErrorFilter = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]
"""Selects exceptions: a class, a tuple of classes, or a function that is true for those it selects."""


def require_integer(name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return ``value`` if it is an integer from ``minimum`` to ``maximum``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r:.50}")
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError(f"{name} must be {range_text(minimum, maximum)}, got {value}")
    return value


def require_bool(name: str, value: Any) -> bool:
    """Return ``value`` if it is ``True`` or ``False``."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {value!r:.100}")
    return value


def require_number(
    name: str,
    value: Any,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    above: float | None = None,
    unit: str = "",
) -> float:
    """Return ``value`` as a float if it is a finite number in the range.

    ``above`` is a lower bound that is itself not allowed. ``unit`` ("seconds") is added to the messages.
    """
    what = f"a number of {unit}" if unit else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {what}, got {value!r:.50}")
    too_small = value < (-inf if minimum is None else minimum) or (above is not None and value <= above)
    if not _is_finite(value) or too_small or value > (inf if maximum is None else maximum):
        allowed = f"above {above:g}" if above is not None else ""
        if above is not None and maximum is not None:
            allowed += f" and at most {maximum:g}"
        allowed = allowed or range_text(minimum, maximum)
        raise ValueError(f"{name} must be {allowed}{' ' + unit if unit else ''}, got {value!r:.50}")
    return float(value)


def require_choice(name: str, value: Any, choices: Collection[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r:.50}")
    return value


def require_text(name: str, value: Any, chars_max: int) -> str:
    """Return ``value`` if it is a string of 1 to ``chars_max`` printable characters."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r:.100}")
    if not 1 <= len(value) <= chars_max or not value.isprintable():
        raise ValueError(f"{name} must be 1 to {chars_max} printable characters, got {value!r:.250}")
    return value


def require_error_filter(name: str, value: Any) -> Callable[[Exception], bool]:
    """Return a function that is true for the exceptions that ``value``, an ``ErrorFilter``, selects."""
    kinds = value if isinstance(value, tuple) else (value,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if isinstance(value, type | tuple) or not callable(value):
        allowed = "a subclass of Exception, a tuple of them or a function of one"
        raise TypeError(f"{name} must be {allowed}, got {value!r:.100}")
    return cast(Callable[[Exception], bool], value)


def range_text(minimum: float | None, maximum: float | None) -> str:
    """Return the words for a range: ``1 to 100``, ``at least 1``, ``at most 100``, ``finite``."""
    if minimum is not None and maximum is not None:
        return f"{_number_text(minimum)} to {_number_text(maximum)}"
    if minimum is not None:
        return f"at least {_number_text(minimum)}"
    return "finite" if maximum is None else f"at most {_number_text(maximum)}"


def _number_text(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False
