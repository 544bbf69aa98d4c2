"""The interface of a source, and the form that the notices of all sources have. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from datetime import date
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypedDict

import msgspec

from comporta.upstream.upstream import Upstream

TEXT_CHARS_MAX: Final = 4000
"""Longer texts of a portal are truncated."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:(?![0-9])")
"""A scheme, and not a host with a port."""

Code = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A portal's numeric code; the bound keeps it within what JSON can represent."""


class PortalError(Exception):
    """A portal did not respond with a page of notices."""


class PortalStatusError(PortalError):
    """A portal responded with a status other than that of a page."""

    def __init__(self, portal: str, status: int) -> None:
        super().__init__(f"{portal} answered with status {status}")
        self.status = status


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


class Listing(NamedTuple):
    """A list of notices that a portal returns page by page; both days are included.

    PNCP lists one modality of one UF. PCP lists all modalities of all UFs, so both are ``None``.
    """

    first_day: date
    last_day: date
    modality: int | None = None
    uf: str | None = None


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

    @property
    def pages_max(self) -> int:
        """At most this many pages of a listing are fetched."""

    def listings(self, first_day: date, last_day: date, modality: int, ufs: Sequence[str]) -> list[Listing]:
        """Return the listings that together have all notices of these days, this modality and these UFs."""

    def has_modality(self, notice: Notice, modality: int) -> bool:
        """Return whether a listed notice has a modality."""

    async def fetch_page(
        self, listing: Listing, number: int, on_sent: Callable[[], None] | None = None
    ) -> NoticePage:
        """Return a page; numbers start at 1. Raises the upstream's refusals and ``PortalError``.

        It calls ``on_sent`` when the page no longer waits for capacity: its request is sent.
        """

    async def aclose(self) -> None:
        """Close the connections."""


def truncated_text(text: Any) -> str | None:
    """Return a portal's text, truncated to ``TEXT_CHARS_MAX``; ``None`` if it is empty or not a text."""
    return text[:TEXT_CHARS_MAX] if isinstance(text, str) and text else None


def web_link(text: str | None, base: str = "https://") -> str | None:
    """Return a link as http or https, with ``base`` before one that has no scheme.

    Return ``None`` for any other scheme (``javascript:``), which a page must not show.
    """
    if not text:
        return None
    if not _SCHEME.match(text):
        text = base + text.lstrip("/")
    return truncated_text(text) if text.lower().startswith(("http://", "https://")) else None


def fold_text(text: str) -> str:
    """Return ``text`` without accents and in lower case: users type terms differently from agencies."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()
