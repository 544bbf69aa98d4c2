"""How the service is configured: the settings, read as the service means them and checked once.

Nothing is opened here, so that ``comporta config check`` can say what is wrong without touching anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from comporta.breaker.registry import sharing
from comporta.database.urls import default_path
from comporta.integrations.addresses import ClientAddress
from comporta.limits.config import LimitConfig
from comporta.settings import BatchSettings, Explained, SearchSettings, Settings, explain, load_settings
from comporta.settings.explain import STATE_DEFAULT
from comporta.settings.kinds import hidden

if TYPE_CHECKING:
    from comporta.settings import ServiceSettings

CONNECTIONS_PER_CALL: Final = 4
"""How many connections there may be for each call that may be under way: others are idle, or half sent."""


@dataclass(frozen=True)
class ServiceConfig:
    """What is in force. :meth:`load` makes it from the file and the environment.

    ``addresses`` are those of the sources by name. ``client_limit`` is for each client of the service, by
    address; ``None``: none. What may hold a password or a token is not part of its ``repr``.
    """

    host: str
    port: int
    workers: int
    state: str = field(repr=False)
    database: str = field(repr=False)
    sheets: Path
    admin_token: str | None = field(repr=False)
    dashboard_token: str | None = field(repr=False)
    trusted_proxies: tuple[str, ...]
    allow_private_addresses: bool
    client_limit: LimitConfig | None
    body_bytes_max: int
    calls_max: int
    request_seconds: float
    close_seconds: float
    search: SearchSettings
    batch: BatchSettings
    addresses: Mapping[str, str]
    share_breakers: bool
    settings: Settings = field(repr=False)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> ServiceConfig:
        """Read the file (left out: ``COMPORTA_CONFIG``) and the environment (left out: this process's)."""
        environ = os.environ if environ is None else environ
        settings = load_settings(path, environ, service=True)
        return cls.of(settings, share_breakers=sharing(environ))

    @classmethod
    def of(cls, settings: Settings, *, share_breakers: bool = True) -> ServiceConfig:
        """Read settings as the service means them; what is wrong is told with its place."""
        written = settings.service
        if written.search.stale < written.search.fresh:
            raise written.search.wrong(
                "stale", f"must be at least fresh, {written.search.fresh:g}, got {written.search.stale:g}"
            )
        return cls(
            host=written.host,
            port=written.port,
            workers=written.workers,
            state=settings.state or STATE_DEFAULT,
            database=written.database or f"sqlite:///{default_path()}",
            sheets=Path(written.sheets) if written.sheets else default_path().parent / "sheets",
            admin_token=written.admin_token,
            dashboard_token=written.dashboard_token,
            trusted_proxies=_proxies(written),
            allow_private_addresses=written.allow_private_addresses,
            client_limit=_client_limit(written),
            body_bytes_max=written.body_bytes_max,
            calls_max=written.calls_max,
            request_seconds=written.request_seconds,
            close_seconds=written.close_seconds,
            search=written.search,
            batch=written.batch,
            addresses=MappingProxyType({"pncp": written.addresses.pncp, "pcp": written.addresses.pcp}),
            share_breakers=share_breakers,
            settings=settings,
        )

    @property
    def connections_max(self) -> int:
        """How many clients may be connected to a worker at once."""
        return self.calls_max * CONNECTIONS_PER_CALL

    def explained(self) -> list[Explained]:
        """Return every value with who said it; no password or token is shown."""
        made = {"service.database": hidden(self.database), "service.sheets": str(self.sheets)}
        return [
            one._replace(value=made.get(one.name, one.value)) for one in explain(self.settings, service=True)
        ]


def _proxies(written: ServiceSettings) -> tuple[str, ...]:
    try:
        ClientAddress(written.trusted_proxies)
    except ValueError as error:
        raise written.blamed(error) from None
    return tuple(written.trusted_proxies)


def _client_limit(written: ServiceSettings) -> LimitConfig | None:
    """Return the limit of a client. While the state is out of reach there is none.

    A share of it starts empty: whoever comes first would be refused for no fault of theirs. What is under way
    at once stays bounded.
    """
    if written.client_limit is False:
        return None
    if not isinstance(written.client_limit, str):
        raise written.wrong("client_limit", "must be text such as '50/s burst 100', or false, got True")
    try:
        return LimitConfig.parse(written.client_limit, fallback="open")
    except ValueError as error:
        raise written.wrong("client_limit", f"cannot be read: {error}") from None
