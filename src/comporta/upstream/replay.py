"""Which HTTP requests may be sent again. Knows no HTTP client."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from comporta.retry import IDEMPOTENT_METHODS

IDEMPOTENCY_KEY = "Idempotency-Key"
"""A request with this header is recognized by the upstream if it arrives twice."""


class Replay(NamedTuple):
    """Whether a request may be sent again: after a failure, and after a refusal."""

    repeatable: bool
    replayable: bool


_NEVER = Replay(repeatable=False, replayable=False)
_AFTER_REFUSALS = Replay(repeatable=False, replayable=True)
_ALWAYS = Replay(repeatable=True, replayable=True)


def replay_rule(
    method: str, headers: Container[str], *, has_fixed_body: bool, wish: bool | None = None
) -> Replay:
    """Return when a request may be sent again. ``headers`` ignores the case of names.

    After a failure the upstream may have acted on the request, so only idempotent ones are sent again. A
    request that was refused with 429 had no effect. A body that is a stream cannot be sent twice. ``wish``,
    unless it is ``None``, decides instead of method and headers.
    """
    if not has_fixed_body or wish is False:
        return _NEVER
    is_idempotent = wish or method.upper() in IDEMPOTENT_METHODS or IDEMPOTENCY_KEY in headers
    return _ALWAYS if is_idempotent else _AFTER_REFUSALS
