"""What the portals answered last, as all workers know it.

A breaker counts failures of a portal, but a portal at a wrong address fails in a way that no breaker counts:
it answers everything with a 404. One small record for each source in the shared store says when it last sent
a page, and what it sent since.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import msgspec

from comporta.errors import StateError
from comporta.fleet.reader import FLEET
from comporta.service.sources.base import PortalStatusError
from comporta.stores.base import Store
from comporta.stores.records import ABSENT, ReadRecord, WriteRecord

RECORD_SECONDS: Final = 3600.0
"""How long an answer is remembered."""

REFUSALS_MIN: Final = 3
"""After this many consecutive 4xx responses a source that sent pages before is reported."""

_CLIENT_ERRORS = range(400, 500)
_PASSING = (408, 429)
"""These say that the portal is busy, not that a request was wrong."""


class LastAnswers(msgspec.Struct, omit_defaults=True):
    """What a source answered: when it last sent a page (Unix seconds), and what it sent instead since.

    ``refusals`` counts consecutive 4xx responses, ``reason`` is what came last.
    """

    page_at: float | None = None
    refusals: int = 0
    reason: str = ""

    def problem(self) -> str | None:
        """Return why the source needs attention; ``None`` if it does not, or was not asked."""
        if not self.reason:
            return None
        if self.page_at is None:
            return f"has not answered yet ({self.reason})"
        return f"answers only with errors ({self.reason})" if self.refusals >= REFUSALS_MIN else None


_DECODER = msgspec.json.Decoder(LastAnswers)
_ENCODER = msgspec.json.Encoder()


async def read_answers(store: Store, source: str) -> LastAnswers:
    """Return what a source answered last; nothing if the store cannot be read."""
    return _decode(await _read(store, source))


async def record_page(store: Store, source: str) -> None:
    """Record that a source sent a page."""
    value = _ENCODER.encode(LastAnswers(page_at=time.time()))
    with suppress(StateError):
        await store.apply_async(WriteRecord(FLEET, _key(source), value, RECORD_SECONDS))


async def record_failure(store: Store, source: str, error: Exception) -> None:
    """Record what a source sent instead of a page; a page that another worker gets meanwhile wins."""
    known = await _read(store, source)
    answers = _decode(known)
    status = error.status if isinstance(error, PortalStatusError) else None
    if status in _CLIENT_ERRORS and status not in _PASSING:
        answers.refusals += 1
    elif answers.page_at is not None:
        return  # its breaker counts it
    answers.reason = type(error).__name__ if status is None else f"HTTP {status}"  # no text: this is public
    with suppress(StateError):
        await store.apply_async(
            WriteRecord(FLEET, _key(source), _ENCODER.encode(answers), RECORD_SECONDS, known or ABSENT)
        )


async def _read(store: Store, source: str) -> bytes | None:
    with suppress(StateError):
        return await store.apply_async(ReadRecord(FLEET, _key(source)))
    return None


def _key(source: str) -> str:
    return f"source.{source}"


def _decode(value: bytes | None) -> LastAnswers:
    with suppress(msgspec.DecodeError):  # another program wrote it
        return LastAnswers() if value is None else _DECODER.decode(value)
    return LastAnswers()
