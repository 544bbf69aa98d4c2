"""The settings of the service: the table ``[service]`` and the variables ``COMPORTA_SERVICE_<FIELD>``.

This module has the fields and their defaults. The service itself decides what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from comporta.settings.field_types import (
    ChoiceField,
    FlagField,
    NumberField,
    SecretField,
    TextField,
    TextListField,
    UnionField,
    UrlField,
    quoted_list,
    short_repr,
)
from comporta.settings.toml_table import Origin, SettingsTable, setting, setting_names, type_of_setting

if TYPE_CHECKING:
    from comporta.settings.toml_document import TomlDocument
    from comporta.settings.toml_positions import KeyPath

SERVICE_PREFIX: Final = "COMPORTA_SERVICE_"
DATABASE_VARIABLE: Final = "DATABASE_URL"
DEFAULT_ORIGIN: Final = "default"
VARIABLE_ALIASES: Mapping[str, str] = MappingProxyType({"COMPORTA_DASHBOARD_TOKEN": "dashboard_token"})
"""Shorter names of variables, with the field that they set."""

_HOUR = 3600.0
_ADDRESS = UrlField("https://host/path", ("http", "https"))
_DATABASE = UrlField(
    "sqlite:///file.db", ("sqlite", "postgresql", "postgres"), "postgresql://user:password@host/name"
)
_PORT = NumberField(0, 65_535, is_integer=True)
_WORKERS = NumberField(1, 64, is_integer=True)
_BYTES = NumberField(1024, 2**30, is_integer=True)
_PAGES = NumberField(1, 1000, is_integer=True)
_DAYS = NumberField(1, 3660, is_integer=True)
_ACCOUNTS = NumberField(1, 1_000_000_000, is_integer=True)
_CALLS = NumberField(1, 100_000, is_integer=True)
_SECONDS = NumberField(above=0, maximum=3600, unit="seconds")
_SECONDS_OR_ZERO = NumberField(0, 3600, unit="seconds")
_AGE = NumberField(above=0, maximum=31_536_000, unit="seconds")
_SECONDS_OR_FALSE = NumberField(above=0, maximum=3600, unit="seconds", allows_false=True)
_LEASE = NumberField(0.05, 3600, unit="seconds")
_CONCURRENCY = NumberField(1, 1000, is_integer=True)
_FLAG = FlagField()
_LIMIT = UnionField("text such as '50/s burst 100', or false", (str, bool))
_AUTH = ChoiceField(("none", "tokens", "header"))
_LOG_FORMAT = ChoiceField(("text", "json"))
_LOG_LEVEL = ChoiceField(("debug", "info", "warning", "error"))
_SHEETS = ChoiceField(("database", "files", "google"))


@dataclass(frozen=True)
class AddressesSettings(SettingsTable):
    """The base URLs of the sources of a search."""

    pncp: str = setting(_ADDRESS, "https://pncp.gov.br")
    pcp: str = setting(_ADDRESS, "https://compras.api.portaldecompraspublicas.com.br")
    origin: str = field(default="addresses", compare=False, kw_only=True)


@dataclass(frozen=True)
class SearchSettings(SettingsTable):
    """The cache and the bounds of searches; durations are in seconds.

    ``fresh`` and ``stale`` are those of the cache. ``soft_timeout`` is how long an answer waits for a refresh
    before the service serves a stale one. ``timeout`` is how long a search waits; what has not arrived then
    is pending.
    """

    fresh: float = setting(_AGE, 6 * _HOUR)
    stale: float = setting(_AGE, 24 * _HOUR)
    soft_timeout: float | bool = setting(_SECONDS_OR_FALSE, False)
    timeout: float = setting(_SECONDS, 60.0)
    page_timeout: float = setting(_SECONDS, 15.0)
    pages_max: int = setting(_PAGES, 20)
    pcp_pages_max: int = setting(_PAGES, 50)
    page_bytes_max: int = setting(_BYTES, 8 * 2**20)
    days_max: int = setting(_DAYS, 31)
    origin: str = field(default="search", compare=False, kw_only=True)


@dataclass(frozen=True)
class BatchSettings(SettingsTable):
    """The processing of batch jobs and its bounds for each worker; ``running_max`` bounds the whole fleet.

    ``processor`` is the function that processes an account, such as ``package.module:name``; without it, the
    service calls ``address``. ``sheets`` says where sheets are; by default they are Google Sheets if there
    are ``google_credentials``, the file of a service account, else the service serves them from its database.
    ``google_endpoint`` replaces the URL of Google's services, for example in tests.
    """

    processor: str | None = setting(TextField("text such as 'package.module:name'"))
    address: str | None = setting(_ADDRESS)
    timeout: float = setting(_SECONDS, 30.0)
    concurrency: int = setting(_CONCURRENCY, 10)
    jobs_max: int = setting(_WORKERS, 8)
    backfills_max: int = setting(_WORKERS, 4)
    running_max: int = setting(_CALLS, 1000)
    running_per_user_max: int = setting(_CALLS, 100)
    accounts_per_user_max: int = setting(_ACCOUNTS, 1_000_000)
    running_per_client_max: int = setting(_CALLS, 100)
    accounts_per_client_max: int = setting(_ACCOUNTS, 1_000_000)
    accounts_max: int = setting(_CALLS, 100_000)
    lease_seconds: float = setting(_LEASE, 15.0)
    poll_seconds: float = setting(_LEASE, 1.0)
    keep_days: int = setting(_DAYS, 30)
    sheets: str | None = setting(_SHEETS)
    google_credentials: str | None = setting(TextField("a file"))
    google_endpoint: str | None = setting(_ADDRESS)
    origin: str = field(default="batch", compare=False, kw_only=True)


_SEARCH, _SEARCH_DEFAULT = UnionField("a table", (SearchSettings,)), SearchSettings()
_ADDRESSES, _ADDRESSES_DEFAULT = UnionField("a table", (AddressesSettings,)), AddressesSettings()
_BATCH, _BATCH_DEFAULT = UnionField("a table", (BatchSettings,)), BatchSettings()


@dataclass(frozen=True)
class ServiceSettings(SettingsTable):
    """The address, the storage and the access control of the service.

    ``public_url`` is the URL at which clients reach the service, by default that of each request.
    ``sheets_folder`` is the directory of sheets that are files, by default in the user's data directory.
    Without ``admin_token`` there are no admin routes, unless ``auth`` is ``tokens``. ``auth`` says how users
    are identified, ``open`` that everyone who reaches the host may use it without. ``request_seconds`` is how
    long a client may take to send a request or to read on. When the service shuts down, it goes on for
    ``drain_seconds``, in which ``/readyz`` returns 503, and then requests in flight may take
    ``close_seconds`` to finish.
    """

    host: str = setting(TextField("a host name or an address"), "127.0.0.1")
    port: int = setting(_PORT, 8000)
    workers: int = setting(_WORKERS, 1)
    database: str | None = setting(_DATABASE)
    public_url: str | None = setting(_ADDRESS)
    sheets_folder: str | None = setting(TextField("a directory"))
    admin_token: str | None = setting(SecretField())
    dashboard_token: str | None = setting(SecretField())
    metrics_token: str | None = setting(SecretField())
    auth: str = setting(_AUTH, "none")
    identity_header: str = setting(TextField("the name of a header"), "X-Forwarded-User")
    open: bool = setting(_FLAG, False)
    trusted_proxies: Sequence[str] = setting(TextListField("a list of networks such as ['10.0.0.0/8']"), ())
    allow_private_addresses: bool = setting(_FLAG, False)
    client_limit: str | bool = setting(_LIMIT, "50/s burst 100")
    body_bytes_max: int = setting(_BYTES, 2**20)
    calls_max: int = setting(_CALLS, 1000)
    request_seconds: float = setting(_SECONDS, 8.0)
    drain_seconds: float = setting(_SECONDS_OR_ZERO, 2.0)
    close_seconds: float = setting(_SECONDS, 5.0)
    log_format: str = setting(_LOG_FORMAT, "text")
    log_level: str = setting(_LOG_LEVEL, "info")
    access_log: bool = setting(_FLAG, False)
    search: SearchSettings = field(default=_SEARCH_DEFAULT, metadata={"type": _SEARCH})
    addresses: AddressesSettings = field(default=_ADDRESSES_DEFAULT, metadata={"type": _ADDRESSES})
    batch: BatchSettings = field(default=_BATCH_DEFAULT, metadata={"type": _BATCH})
    origin: str = field(default="service", compare=False, kw_only=True)


SERVICE_TABLES: Mapping[str, type[SettingsTable]] = MappingProxyType(
    {"search": SearchSettings, "addresses": AddressesSettings, "batch": BatchSettings}
)
"""The tables inside ``[service]``."""


def service_variable(field: str) -> str:
    """Return the environment variable that overrides a field: ``port``, ``search.fresh``."""
    return SERVICE_PREFIX + field.replace(".", "_").upper()


DEFAULT_UPSTREAMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "pncp": MappingProxyType({"limit": "10/s", "max_concurrent": 10}),
        "pcp": MappingProxyType({"limit": "5/s", "max_concurrent": 10}),
    }
)
"""The default fields of the service's upstreams."""

DEFAULT_RETRY: Mapping[str, Any] = MappingProxyType({"retries": 2, "base": 0.3})
"""Their default retries: short, because a user waits for the search, and the cache has a longer backoff."""


def apply_service_defaults(document: TomlDocument, environ: Mapping[str, str]) -> None:
    """Add the default upstreams of the service, and the database that ``DATABASE_URL`` names."""
    for name, fields in DEFAULT_UPSTREAMS.items():
        upstream = document.table(("upstreams", name))
        for field_name in fields.keys() - upstream.keys():
            document.put(("upstreams", name, field_name), fields[field_name], Origin(DEFAULT_ORIGIN))
        retry = upstream.get("retry", {})
        if isinstance(retry, dict):  # false switches retries off; other values are reported later
            for field_name in DEFAULT_RETRY.keys() - retry.keys():
                document.put(
                    ("upstreams", name, "retry", field_name),
                    DEFAULT_RETRY[field_name],
                    Origin(DEFAULT_ORIGIN),
                )
    url = environ.get(DATABASE_VARIABLE)
    if url and "database" not in document.table(("service",)):
        document.put(("service", "database"), url, Origin(DATABASE_VARIABLE))


def apply_service_variables(document: TomlDocument, environ: Mapping[str, str]) -> None:
    """Raise an error for unknown fields and variables, and write the values of the variables."""
    document.reject_unknown(("service",), setting_names(ServiceSettings))
    for table, table_type in SERVICE_TABLES.items():
        document.reject_unknown(("service", table), setting_names(table_type))
    variables = {service_variable(".".join(path)): path for path in _field_paths()}
    variables |= {name: (field_name,) for name, field_name in VARIABLE_ALIASES.items()}
    _check_aliases(environ)
    for variable in sorted(environ):
        is_service_variable = variable.startswith(SERVICE_PREFIX) or variable in VARIABLE_ALIASES
        if not is_service_variable or not environ[variable]:
            continue
        if variable not in variables:
            names = quoted_list(sorted(variables.keys() - VARIABLE_ALIASES.keys()))
            raise ValueError(f"{variable} must be one of {names}, got {short_repr(variable)}")
        path = variables[variable]
        table_type = ServiceSettings if len(path) == 1 else SERVICE_TABLES[path[0]]
        value = type_of_setting(table_type, path[-1]).parse(environ[variable])
        document.put(("service", *path), value, Origin(variable))


def _check_aliases(environ: Mapping[str, str]) -> None:
    """Raise an error, without the values, if both names of a variable are set to different values."""
    for name, field_name in VARIABLE_ALIASES.items():
        full = service_variable(field_name)
        values = {environ[variable] for variable in (name, full) if environ.get(variable)}
        if len(values) > 1:
            raise ValueError(f"{name} must have the same value as {full}, got another one")


def _field_paths() -> list[KeyPath]:
    plain: list[KeyPath] = [(name,) for name in setting_names(ServiceSettings) if name not in SERVICE_TABLES]
    nested = [(table, name) for table in SERVICE_TABLES for name in setting_names(SERVICE_TABLES[table])]
    return plain + nested
