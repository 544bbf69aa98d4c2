"""The configuration of the service, derived from the settings and validated once.

It opens nothing, so ``comporta config check`` can report mistakes without side effects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from comporta.breaker.registry import is_sharing_enabled
from comporta.database.urls import default_path
from comporta.integrations.client_ip import ClientAddress
from comporta.limits.config import LimitConfig
from comporta.settings import (
    BatchSettings,
    ExplainedSetting,
    SearchSettings,
    Settings,
    explain,
    load_settings,
)
from comporta.settings.explain import DEFAULT_STATE
from comporta.settings.field_types import short_repr, without_credentials

if TYPE_CHECKING:
    from comporta.settings import ServiceSettings

MULTIPROCESS_DIR_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The directory in which workers share their counters, for prometheus-client."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")

CONNECTIONS_PER_CALL: Final = 4
"""Connections allowed for each concurrent call; the others are idle or have sent half a request."""


@dataclass(frozen=True)
class ServiceConfig:
    """The effective configuration. :meth:`load` reads it from the settings file and the environment.

    ``addresses`` maps source names to their URLs. ``client_limit`` applies to each client address; ``None``
    means no limit. ``public_url`` has no slash at its end. ``sheets`` is where the sheets of batch jobs are:
    ``database``, ``files`` or ``google``. Fields that may hold a password or a token are not part of the
    ``repr``.
    """

    host: str
    port: int
    workers: int
    state: str = field(repr=False)
    database: str = field(repr=False)
    public_url: str | None
    sheets: str
    sheets_folder: Path
    admin_token: str | None = field(repr=False)
    dashboard_token: str | None = field(repr=False)
    metrics_token: str | None = field(repr=False)
    auth: str
    identity_header: str
    open: bool
    trusted_proxies: tuple[str, ...]
    allow_private_addresses: bool
    client_limit: LimitConfig | None
    body_bytes_max: int
    calls_max: int
    request_seconds: float
    drain_seconds: float
    close_seconds: float
    log_format: str
    log_level: str
    access_log: bool
    search: SearchSettings
    batch: BatchSettings
    addresses: Mapping[str, str]
    share_breakers: bool
    settings: Settings = field(repr=False)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None
    ) -> ServiceConfig:
        """Load the file ``path`` (default: ``COMPORTA_CONFIG``) and ``environ`` (default: this process's)."""
        environ = os.environ if environ is None else environ
        settings = load_settings(path, environ, service=True)
        return cls.from_settings(settings, share_breakers=is_sharing_enabled(environ))

    @classmethod
    def from_settings(cls, settings: Settings, *, share_breakers: bool = True) -> ServiceConfig:
        """Derive the configuration; an error names the file or variable that holds the wrong value."""
        service = settings.service
        if service.search.stale < service.search.fresh:
            raise service.search.field_error(
                "stale", f"must be at least fresh, {service.search.fresh:g}, got {service.search.stale:g}"
            )
        return cls(
            host=service.host,
            port=service.port,
            workers=service.workers,
            state=settings.state or DEFAULT_STATE,
            database=service.database or f"sqlite:///{default_path()}",
            public_url=_public_url(service),
            sheets=_sheets(service),
            sheets_folder=(
                Path(service.sheets_folder) if service.sheets_folder else default_path().parent / "sheets"
            ),
            admin_token=service.admin_token,
            dashboard_token=service.dashboard_token,
            metrics_token=service.metrics_token,
            auth=service.auth,
            identity_header=_identity_header(service),
            open=service.open,
            trusted_proxies=_trusted_proxies(service),
            allow_private_addresses=service.allow_private_addresses,
            client_limit=_client_limit(service),
            body_bytes_max=service.body_bytes_max,
            calls_max=service.calls_max,
            request_seconds=service.request_seconds,
            drain_seconds=service.drain_seconds,
            close_seconds=service.close_seconds,
            log_format=service.log_format,
            log_level=service.log_level,
            access_log=service.access_log,
            search=service.search,
            batch=service.batch,
            addresses=MappingProxyType({"pncp": service.addresses.pncp, "pcp": service.addresses.pcp}),
            share_breakers=share_breakers,
            settings=settings,
        )

    @property
    def connections_max(self) -> int:
        """The largest number of client connections of one worker."""
        return self.calls_max * CONNECTIONS_PER_CALL

    def explain(self) -> list[ExplainedSetting]:
        """Return every setting with its value and origin; passwords and tokens are hidden."""
        effective = {
            "service.database": without_credentials(self.database),
            "service.sheets_folder": str(self.sheets_folder),
            "service.batch.sheets": self.sheets,
        }
        return [
            setting._replace(value=effective.get(setting.name, setting.value))
            for setting in explain(self.settings, service=True)
        ]


def check_exposure(config: ServiceConfig) -> None:
    """Raise an error if other machines could use the service without authentication by accident."""
    if config.auth == "none" and not config.open and not _is_loopback(config.host):
        raise ValueError(
            f"host {config.host} is reachable from other machines, and auth is 'none': set service.auth to "
            "'tokens' or 'header', or pass --open (COMPORTA_SERVICE_OPEN=1) if a proxy controls the access"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _identity_header(service: ServiceSettings) -> str:
    if service.auth == "header" and not service.trusted_proxies:
        raise service.field_error("auth", "must be 'none' or 'tokens' without trusted_proxies, got 'header'")
    if not _HEADER_NAME.fullmatch(service.identity_header):
        problem = "must be the name of a header"
        raise service.field_error("identity_header", f"{problem}, got {short_repr(service.identity_header)}")
    return service.identity_header


def _public_url(service: ServiceSettings) -> str | None:
    """Return the public URL; links are this text with a path added, so it must end with a path or a host."""
    if service.public_url is None:
        return None
    parts = urlsplit(service.public_url)
    if not parts.hostname or "@" in parts.netloc or parts.query or parts.fragment:
        problem = "must be a URL such as 'https://host/path' without user, query and fragment"
        raise service.field_error("public_url", f"{problem}, got {short_repr(service.public_url)}")
    return service.public_url.rstrip("/")


def _sheets(service: ServiceSettings) -> str:
    """Return where sheets are. Files on one machine cannot hold what workers of several machines write."""
    batch = service.batch
    has_google = batch.google_credentials is not None or batch.google_endpoint is not None
    sheets = batch.sheets or ("google" if has_google else "database")
    if sheets == "files" and (service.database or "").startswith("postgres"):
        raise batch.field_error(
            "sheets", "must be 'database' or 'google' if the database is PostgreSQL, got 'files'"
        )
    return sheets


def _trusted_proxies(service: ServiceSettings) -> tuple[str, ...]:
    try:
        ClientAddress(service.trusted_proxies)
    except ValueError as error:
        raise service.error_with_origin(error) from None
    return tuple(service.trusted_proxies)


def _client_limit(service: ServiceSettings) -> LimitConfig | None:
    """Return the limit for each client. While the store is unreachable it admits every client.

    A local share would start empty and refuse the first requests without cause. ``calls_max`` still bounds
    concurrent requests.
    """
    if service.client_limit is False:
        return None
    if not isinstance(service.client_limit, str):
        raise service.field_error("client_limit", "must be text such as '50/s burst 100', or false, got True")
    try:
        return LimitConfig.parse(service.client_limit, fallback="open")
    except ValueError as error:
        raise service.field_error("client_limit", f"cannot be parsed: {error}") from None
