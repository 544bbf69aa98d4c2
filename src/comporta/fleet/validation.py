"""Parses records of the fleet status, and rejects malformed ones. Pure.

Any program with access to a server's keys may have written anything there. What these functions return has
the form that pages and command lines rely on, so that a malformed record costs one summary or one line and
not the whole page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from comporta.fleet.series import PHASE_NUMBERS
from comporta.names import is_valid_name
from comporta.stores.records import VALUE_BYTES_MAX
from comporta.upstream.recent_failures import FAILURES_MAX

MOMENT_MAX: Final = 1e11
"""The latest accepted time in Unix seconds, in about 3,000 years: every calendar library can show it."""

NUMBER_MAX: Final = 1e15
STEPS_MAX: Final = 100
HOLDERS_MAX: Final = 1000
LIMITS_MAX: Final = 16

Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= NUMBER_MAX  # false for nan


def _is_moment(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= MOMENT_MAX


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= STEPS_MAX


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= HOLDERS_MAX and all(map(_is_text, value))


def _are_numbers(value: Any) -> bool:
    fits = isinstance(value, dict) and len(value) <= HOLDERS_MAX
    return fits and all(one is None or _is_number(one) for one in value.values())


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


_LIMIT_FIELDS: Final[Mapping[str, Check]] = {
    "name": _is_text,
    **dict.fromkeys(("tokens", "capacity", "burst", "limit", "original"), _is_number),
    "configured": _optional(_is_number),
    **dict.fromkeys(("strategy", "limit_text", "configured_text"), _is_text),
}


def _are_limits(value: Any) -> bool:
    fits = isinstance(value, list) and len(value) <= LIMITS_MAX
    return fits and all(isinstance(one, dict) and _is_limit(one) for one in value)


def _is_limit(value: dict[str, Any]) -> bool:
    for field, default in _ADDED_LIMIT_FIELDS.items():
        value.setdefault(field, default)
    value.setdefault("burst", value.get("capacity"))
    return _matches(value, _LIMIT_FIELDS)


_EVENT_FIELDS: Final[Mapping[str, Check]] = {
    "at": _is_moment,
    **dict.fromkeys(("kind", "source", "text", "severity", "worker"), _is_text),
}
_SUMMARY_FIELDS: Final[Mapping[str, Check]] = {
    "name": _is_text,
    "phase": lambda value: value is None or (_is_text(value) and value in PHASE_NUMBERS),
    **dict.fromkeys(("since", "until"), _optional(_is_moment)),
    **dict.fromkeys(("failures", "share", "capacity", "burst", "limit", "original", "paused"), _is_number),
    **dict.fromkeys(
        ("threshold", "tokens", "in_flight", "in_flight_max", "configured"), _optional(_is_number)
    ),
    **dict.fromkeys(("reason", "in_words", "strategy", "limit_text", "configured_text"), _is_text),
    "forced": _optional(_is_text),
    **dict.fromkeys(("probes", "shadow"), _are_texts),
    **dict.fromkeys(("holders", "minute"), _are_numbers),
    "limits": _are_limits,
}
_ADDED_FIELDS: Final = {"shadow": [], "limits": [], "limit_text": "", "configured_text": ""}
"""Fields that a worker of an older version does not write."""

_FAILURE_FIELDS: Final[Mapping[str, Check]] = {
    "at": _is_moment,
    **dict.fromkeys(("text", "worker"), _is_text),
}
_ADDED_LIMIT_FIELDS: Final = {
    "configured": None,
    "strategy": "token_bucket",
    "limit_text": "",
    "configured_text": "",
}
_STORY_FIELDS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(("step", "of"), _is_step),
    **dict.fromkeys(("scenario", "title", "text", "look"), _is_text),
}


def parse_event(record: bytes) -> dict[str, Any] | None:
    """Return an event without unknown fields; ``None`` if it is malformed."""
    event = parse_object(record)
    return event if event is None or _matches(event, _EVENT_FIELDS) else None


def parse_summary(name: str, record: bytes | None) -> dict[str, Any] | None:
    """Return the summary of an upstream; ``None`` if it is malformed or names another upstream."""
    summary = parse_object(record)
    if summary is not None:
        for field, default in _ADDED_FIELDS.items():
            summary.setdefault(field, default)
        summary.setdefault("burst", summary.get("capacity"))
    return (
        summary
        if summary is not None and _matches(summary, _SUMMARY_FIELDS) and summary["name"] == name
        else None
    )


def parse_counts(record: bytes | None) -> dict[str, int]:
    """Return the leased units by limit, or the waiting callers by upstream and class, if well-formed."""
    counts = parse_object(record) or {}
    return {
        name: count for name, count in counts.items() if isinstance(count, int) and 0 < count <= NUMBER_MAX
    }


def parse_failures(record: bytes | None) -> list[dict[str, Any]]:
    """Return the latest failures of an upstream, the newest first, without malformed ones."""
    failures = (parse_object(record) or {}).get("failures")
    listed = failures[:FAILURES_MAX] if isinstance(failures, list) else []
    return [each for each in listed if isinstance(each, dict) and _matches(each, _FAILURE_FIELDS)]


def parse_story(record: bytes | None) -> dict[str, Any] | None:
    """Return the demo's current step, without malformed fields."""
    story = parse_object(record)
    if story is None:
        return None
    return {
        field: story[field]
        for field, check in _STORY_FIELDS.items()
        if field in story and check(story[field])
    }


def parse_names(record: bytes | None) -> dict[str, float]:
    """Return the known upstreams and when each was last published, without malformed lines."""
    lines = (record or b"")[:VALUE_BYTES_MAX].decode("utf-8", "replace").splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    return {pair[1]: float(pair[0]) for pair in pairs if len(pair) == 2 and _is_name_line(*pair)}


def parse_object(record: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object; ``None`` if the record is absent, too long, or not an object."""
    if not record or len(record) > VALUE_BYTES_MAX:
        return None
    try:
        value = json.loads(record)
        json.dumps(value, ensure_ascii=False).encode()  # rejects lone surrogates, which cannot be sent
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _matches(fields: dict[str, Any], form: Mapping[str, Check]) -> bool:
    """Whether an object has all fields of a form; removes other fields from it."""
    if not all(field in fields and check(fields[field]) for field, check in form.items()):
        return False
    for field in fields.keys() - form.keys():
        del fields[field]
    return True


def _is_name_line(at: str, name: str) -> bool:
    return at.isascii() and at.isdigit() and len(at) <= 12 and is_valid_name(name)
