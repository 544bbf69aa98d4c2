"""What was written into the state as something to be shown: read as that, or as nothing. Pure.

Whoever may write to a server's keys may have written anything. What is passed on from here has the form that
pages and command lines count on, so that a strange record is one card or one line less and not the end of all
of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from comporta.names import is_name
from comporta.stores.records import VALUE_BYTES_MAX
from comporta.watching.series import PHASE_NUMBERS

MOMENT_MAX: Final = 1e11
"""Unix seconds that every calendar knows: some three thousand years."""

NUMBER_MAX: Final = 1e15
STEPS_MAX: Final = 100
HOLDERS_MAX: Final = 1000

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= NUMBER_MAX  # nan is not


def _is_moment(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MOMENT_MAX


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= STEPS_MAX


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= HOLDERS_MAX and all(map(_is_text, value))


def _are_numbers(value: Any) -> bool:
    fits = isinstance(value, dict) and len(value) <= HOLDERS_MAX
    return fits and all(one is None or _is_number(one) for one in value.values())


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


_EVENT: Final[Mapping[str, Check]] = {
    "at": _is_moment,
    **dict.fromkeys(("kind", "source", "text", "severity", "worker"), _is_text),
}
_CARD: Final[Mapping[str, Check]] = {
    "name": _is_text,
    "phase": lambda value: value is None or (_is_text(value) and value in PHASE_NUMBERS),
    **dict.fromkeys(("since", "until"), _maybe(_is_moment)),
    **dict.fromkeys(("failures", "share", "capacity", "limit", "original", "paused"), _is_number),
    **dict.fromkeys(("threshold", "tokens", "in_flight", "in_flight_max", "configured"), _maybe(_is_number)),
    **dict.fromkeys(("why", "in_words"), _is_text),
    "forced": _maybe(_is_text),
    "probes": _are_texts,
    **dict.fromkeys(("holders", "minute"), _are_numbers),
}
_STORY: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("step", "of"), _is_step),
    **dict.fromkeys(("scenario", "title", "text", "look"), _is_text),
}


def event_of(kept: bytes) -> dict[str, Any] | None:
    """Return an event as it was noted, and nothing that was noted besides."""
    found = object_of(kept)
    return found if found is None or _fits(found, _EVENT) else None


def card_of(name: str, kept: bytes | None) -> dict[str, Any] | None:
    """Return the card of an upstream; one of another is none."""
    found = object_of(kept)
    return found if found is not None and _fits(found, _CARD) and found["name"] == name else None


def leases_of(kept: bytes | None) -> dict[str, int]:
    """Return how many units of which limits somebody has on lease; what makes no sense is none."""
    found = object_of(kept) or {}
    return {
        name: units for name, units in found.items() if isinstance(units, int) and 0 < units <= NUMBER_MAX
    }


def story_of(kept: bytes | None) -> dict[str, Any] | None:
    """Return what is being shown, as far as it makes sense."""
    found = object_of(kept)
    if found is None:
        return None
    return {field: found[field] for field, check in _STORY.items() if field in found and check(found[field])}


def names_of(kept: bytes | None) -> dict[str, float]:
    """Return which upstreams are known, and when each was last told of; lines that make no sense are none."""
    lines = (kept or b"")[:VALUE_BYTES_MAX].decode("utf-8", "replace").splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return {pair[1]: float(pair[0]) for pair in pairs if len(pair) == 2 and _is_named(*pair)}


def object_of(kept: bytes | None) -> dict[str, Any] | None:
    """Read what was written as an object; what is none, or longer than any, is nothing."""
    if not kept or len(kept) > VALUE_BYTES_MAX:
        return None
    try:
        found = json.loads(kept)
        json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be told to anybody
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fits(found: dict[str, Any], form: Mapping[str, Check]) -> bool:
    """Whether an object has a form; what does not belong to it is taken out."""
    if not all(field in found and check(found[field]) for field, check in form.items()):
        return False
    for field in found.keys() - form.keys():
        del found[field]
    return True


def _is_named(at: str, name: str) -> bool:
    return at.isascii() and at.isdigit() and len(at) <= 12 and is_name(name)
