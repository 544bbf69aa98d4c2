"""What a search needs of a source, and the one form that all sources' notices have. Pure."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypedDict

import msgspec

from comporta.upstream.upstream import Upstream

TEXT_CHARS_MAX: Final = 4000
"""How much of a portal's text is kept."""

Code = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A portal's number for something; what is larger than JSON's own could not be kept."""


class SourceError(Exception):
    """A portal answered with something that is no page of notices."""


class MalformedPageError(SourceError, ValueError):
    """What came is not what the portal promises; asking again would bring the same."""


class Notice(TypedDict):
    """A public call for offers. ``id`` is PNCP's control number where there is one."""

    id: str
    sources: list[str]
    agency: str | None
    cnpj: str | None
    uf: str
    city: str | None
    object: str
    value: float | None
    modality: int | None
    modality_name: str | None
    published_at: str | None
    closes_at: str | None
    url: str | None


class Wanted(NamedTuple):
    """What is asked of a source for one UF: both days are included."""

    first: date
    last: date
    modality: int
    uf: str


class Page(NamedTuple):
    """A part of the answer, and of how many."""

    notices: list[Notice]
    pages: int


class Source(Protocol):
    """A portal that publishes notices page by page."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def upstream(self) -> Upstream:
        """How it may be used."""

    async def page(self, wanted: Wanted, number: int) -> Page:
        """Return a page, the first being 1; raises what the upstream refuses and what goes wrong."""

    async def aclose(self) -> None:
        """Close the connections."""


def bounded(text: Any) -> str | None:
    """Return a portal's text, cut where it is too long."""
    return text[:TEXT_CHARS_MAX] if isinstance(text, str) and text else None


def web_link(text: str | None) -> str | None:
    """Return a link that a page may show; others (``javascript:``) are none."""
    return bounded(text) if text is not None and text.lower().startswith(("http://", "https://")) else None
