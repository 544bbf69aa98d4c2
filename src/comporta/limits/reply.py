"""The reply of a limit's script, and the error for a key that the script cannot use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.errors import StateError, StateTypeError
from comporta.limits.scripts import LIMIT_SPACE
from comporta.limits.strategies.base import Strategy
from comporta.stores.base import State, key_text
from comporta.stores.lua import script_error


class LimitReply(NamedTuple):
    """The reply of one limit.

    The request was granted if ``wait_us`` is at most the requested maximum. ``recent``, the units granted in
    the last minute, is counted only for a peek. ``paused_us`` is how long the limit grants nothing, and
    ``original`` the capacity that a degraded limit returns to.
    """

    wait_us: int
    capacity: int
    remaining: int
    retry_us: int
    reset_us: int
    recent: int
    paused_us: int = 0
    original: int = 0


REPLY_SIZE = len(LimitReply._fields)


def build_reply(
    strategy: Strategy,
    state: State | None,
    now_us: int,
    wait_us: int,
    retry_us: int,
    *,
    is_peek: bool = False,
) -> LimitReply:
    """Return the reply of a limit, given the state after the decision."""
    current, paused_us, original = strategy.effective_at(now_us)
    remaining, reset_us, recent = current.usage(state, now_us)
    minute = recent if is_peek else 0
    return LimitReply(
        wait_us, current.params.capacity, remaining, retry_us, reset_us, minute, paused_us, original
    )


def parse_reply(name: str, key: str, fields: Sequence[Any]) -> LimitReply:
    """Return the reply of one limit, or raise the error that the script returned for its key."""
    if not isinstance(fields[0], int):
        raise unusable_key_error(name, key, fields[0])
    return LimitReply._make(fields)


def unusable_key_error(name: str, key: str, error: object) -> StateError:
    """Return the error for a key that holds something else, or that this user may not access."""
    text = error.decode("utf-8", "replace") if isinstance(error, bytes) else error
    if not isinstance(text, str):
        raise TypeError("expected a text")
    full_key = key_text(f"{LIMIT_SPACE}:{name}", key)
    if "WRONGTYPE" not in text:
        return script_error(text, full_key)
    return StateTypeError(
        f"{full_key!r} does not hold the state of a limit and was left unchanged: {text}. "
        "Delete the key or rename the limit"
    )
