"""The interface of a source, and the form that the notices of all sources have. Pure."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypedDict

import msgspec

from comporta.upstream.upstream import Upstream

TEXT_CHARS_MAX: Final = 4000
"""Longer texts of a portal are truncated."""

Code = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A portal's numeric code; the bound keeps it within what JSON can represent."""


class PortalError(Exception):
    """A portal did not respond with a page of notices."""


class MalformedPageError(PortalError, ValueError):
    """The response does not have the portal's format; a retry would return the same."""


class Notice(TypedDict):
    """A public call for bids. ``id`` is PNCP's control number if the notice has one."""

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


class UfQuery(NamedTuple):
    """A query for one UF; both days are included."""

    first_day: date
    last_day: date
    modality: int
    uf: str


class NoticePage(NamedTuple):
    """One page of notices and the total number of pages."""

    notices: list[Notice]
    page_count: int


class NoticeSource(Protocol):
    """A portal that publishes notices page by page."""

    @property
    def name(self) -> str:
        """The name of the source."""

    @property
    def upstream(self) -> Upstream:
        """The upstream whose policies apply to every call."""

    async def fetch_page(self, query: UfQuery, number: int) -> NoticePage:
        """Return a page; numbers start at 1. Raises the upstream's refusals and ``PortalError``."""

    async def aclose(self) -> None:
        """Close the connections."""


def truncated_text(text: Any) -> str | None:
    """Return a portal's text, truncated to ``TEXT_CHARS_MAX``; ``None`` if it is empty or not a text."""
    return text[:TEXT_CHARS_MAX] if isinstance(text, str) and text else None


def web_link(text: str | None) -> str | None:
    """Return an http or https link; ``None`` for any other (``javascript:``), which a page must not show."""
    return (
        truncated_text(text)
        if text is not None and text.lower().startswith(("http://", "https://"))
        else None
    )
