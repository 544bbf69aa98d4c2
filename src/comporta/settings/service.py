"""What the service takes: the table ``[service]``, and ``COMPORTA_SERVICE_<FIELD>`` laid over it.

Values and their defaults only; what they mean is with whoever serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from comporta.settings.kinds import Either, Number, Secret, Text, Texts, Url, listed, shown
from comporta.settings.written import Source, Written, kinds, names, of

if TYPE_CHECKING:
    from comporta.settings.document import Document
    from comporta.settings.lines import Path

SERVICE_PREFIX: Final = "COMPORTA_SERVICE_"
DATABASE_VARIABLE: Final = "DATABASE_URL"
DEFAULT: Final = "default"
OTHER_NAMES: Mapping[str, str] = MappingProxyType({"COMPORTA_DASHBOARD_TOKEN": "dashboard_token"})
"""Variables that say a field by a shorter name as well."""

_HOUR = 3600.0
_ADDRESS = Url("https://host/path", ("http", "https"))
_DATABASE = Url(
    "sqlite:///file.db", ("sqlite", "postgresql", "postgres"), "postgresql://user:password@host/name"
)
_PORT = Number("a whole number", "0 to 65535", least=0, most=65_535, whole=True)
_WORKERS = Number("a whole number", "1 to 64", least=1, most=64, whole=True)
_BYTES = Number("a whole number", "1024 to 1073741824", least=1024, most=2**30, whole=True)
_PAGES = Number("a whole number", "1 to 1000", least=1, most=1000, whole=True)
_DAYS = Number("a whole number", "1 to 3660", least=1, most=3660, whole=True)
_CALLS = Number("a whole number", "1 to 100000", least=1, most=100_000, whole=True)
_SECONDS = Number("a number of seconds", "more than 0 and at most 3600", above=0, most=3600)
_AGE = Number("a number of seconds", "more than 0 and at most 31536000", above=0, most=31_536_000)
_SECONDS_OR_NONE = Number("a number of seconds", "positive", above=0, most=3600, off=True)
_LEASE = Number("a number of seconds", "0.05 to 3600", least=0.05, most=3600)
_FEW = Number("a whole number", "1 to 1000", least=1, most=1000, whole=True)
_SWITCH = Either("true or false", (bool,))
_LIMIT = Either("text such as '50/s burst 100', or false", (str, bool))


@dataclass(frozen=True)
class AddressesSettings(Written):
    """Where the sources of searches are."""

    pncp: str = of(_ADDRESS, "https://pncp.gov.br")
    pcp: str = of(_ADDRESS, "https://compras.api.portaldecompraspublicas.com.br")
    source: str = field(default="addresses", compare=False, kw_only=True)


@dataclass(frozen=True)
class SearchSettings(Written):
    """How searches are kept and bounded; durations are in seconds.

    ``fresh`` and ``stale`` are those of the cache; ``soft_timeout`` how long a refresh may hold up an answer
    that could be served stale; ``timeout`` how long a search may take in all.
    """

    fresh: float = of(_AGE, 6 * _HOUR)
    stale: float = of(_AGE, 24 * _HOUR)
    soft_timeout: float | bool = of(_SECONDS_OR_NONE, False)
    timeout: float = of(_SECONDS, 60.0)
    page_timeout: float = of(_SECONDS, 15.0)
    pages_max: int = of(_PAGES, 20)
    page_bytes_max: int = of(_BYTES, 8 * 2**20)
    days_max: int = of(_DAYS, 31)
    source: str = field(default="search", compare=False, kw_only=True)


@dataclass(frozen=True)
class BatchSettings(Written):
    """How batches are processed, and bounded for each worker; ``running_max`` is for all of them together.

    ``processor`` is what is done for an account, such as ``package.module:name``; left out, ``address`` is
    asked about it. ``google_credentials`` is the file of a service account: sheets are Google's then.
    ``google_endpoint`` is another address for Google's services, such as a stand-in's.
    """

    processor: str | None = of(Text("text such as 'package.module:name'"))
    address: str | None = of(_ADDRESS)
    timeout: float = of(_SECONDS, 30.0)
    concurrency: int = of(_FEW, 10)
    jobs_max: int = of(_WORKERS, 8)
    backfills_max: int = of(_WORKERS, 4)
    running_max: int = of(_CALLS, 1000)
    accounts_max: int = of(_CALLS, 100_000)
    lease_seconds: float = of(_LEASE, 15.0)
    poll_seconds: float = of(_LEASE, 1.0)
    keep_days: int = of(_DAYS, 30)
    google_credentials: str | None = of(Text("a file"))
    google_endpoint: str | None = of(_ADDRESS)
    source: str = field(default="batch", compare=False, kw_only=True)


_SEARCH, _SEARCH_DEFAULT = Either("a table", (SearchSettings,)), SearchSettings()
_ADDRESSES, _ADDRESSES_DEFAULT = Either("a table", (AddressesSettings,)), AddressesSettings()
_BATCH, _BATCH_DEFAULT = Either("a table", (BatchSettings,)), BatchSettings()


@dataclass(frozen=True)
class ServiceSettings(Written):
    """How the service is served, where it keeps things, and whom it lets in.

    ``admin_token`` left out: no admin routes. ``sheets`` is a folder; left out it is in the user's data
    folder. ``request_seconds`` is how long a client may take to send a request, or to read on,
    ``close_seconds`` how long those under way may take to finish when the service is told to end.
    """

    host: str = of(Text("a host name or an address"), "127.0.0.1")
    port: int = of(_PORT, 8000)
    workers: int = of(_WORKERS, 1)
    database: str | None = of(_DATABASE)
    sheets: str | None = of(Text("a folder"))
    admin_token: str | None = of(Secret())
    dashboard_token: str | None = of(Secret())
    trusted_proxies: Sequence[str] = of(Texts("a list of networks such as ['10.0.0.0/8']"), ())
    allow_private_addresses: bool = of(_SWITCH, False)
    client_limit: str | bool = of(_LIMIT, "50/s burst 100")
    body_bytes_max: int = of(_BYTES, 2**20)
    calls_max: int = of(_CALLS, 1000)
    request_seconds: float = of(_SECONDS, 8.0)
    close_seconds: float = of(_SECONDS, 5.0)
    search: SearchSettings = field(default=_SEARCH_DEFAULT, metadata={"kind": _SEARCH})
    addresses: AddressesSettings = field(default=_ADDRESSES_DEFAULT, metadata={"kind": _ADDRESSES})
    batch: BatchSettings = field(default=_BATCH_DEFAULT, metadata={"kind": _BATCH})
    source: str = field(default="service", compare=False, kw_only=True)


TABLES: Mapping[str, type[Written]] = MappingProxyType(
    {"search": SearchSettings, "addresses": AddressesSettings, "batch": BatchSettings}
)
"""The tables in the service's own."""


def service_variable(field: str) -> str:
    """Return the environment variable that overrides a field: ``port``, ``search.fresh``."""
    return SERVICE_PREFIX + field.replace(".", "_").upper()


UPSTREAMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "pncp": MappingProxyType({"limit": "10/s", "max_concurrent": 10}),
        "pcp": MappingProxyType({"limit": "5/s", "max_concurrent": 10}),
    }
)
"""What holds for the upstreams of the service where nobody says otherwise, field by field."""

RETRY: Mapping[str, Any] = MappingProxyType({"retries": 2, "base": 0.3})
"""How they are tried again: somebody waits for the answer of a search, and the cache backs off for longer."""


def lay_defaults(document: Document, environ: Mapping[str, str]) -> None:
    """Put in what the service brings along, and the database that a variable of others' making means."""
    for name, fields in UPSTREAMS.items():
        written = document.table(("upstreams", name))
        for field_name in fields.keys() - written.keys():
            document.put(("upstreams", name, field_name), fields[field_name], Source(DEFAULT))
        retry = written.get("retry", {})
        if isinstance(retry, dict):  # anything else is none at all, or a mistake
            for field_name in RETRY.keys() - retry.keys():
                document.put(("upstreams", name, "retry", field_name), RETRY[field_name], Source(DEFAULT))
    url = environ.get(DATABASE_VARIABLE)
    if url and "database" not in document.table(("service",)):
        document.put(("service", "database"), url, Source(DATABASE_VARIABLE))


def lay_service(document: Document, environ: Mapping[str, str]) -> None:
    """Refuse fields that nobody reads, and lay the variables over the others."""
    document.known(("service",), names(ServiceSettings))
    for table, kind in TABLES.items():
        document.known(("service", table), names(kind))
    variables = {service_variable(".".join(path)): path for path in _paths()}
    variables |= {name: (field_name,) for name, field_name in OTHER_NAMES.items()}
    _agree(environ)
    for variable in sorted(environ):
        ours = variable.startswith(SERVICE_PREFIX) or variable in OTHER_NAMES
        if not ours or not environ[variable]:
            continue
        if variable not in variables:
            known = listed(sorted(variables.keys() - OTHER_NAMES.keys()))
            raise ValueError(f"{variable} must be one of {known}, got {shown(variable)}")
        path = variables[variable]
        root = ServiceSettings if len(path) == 1 else TABLES[path[0]]
        kind = next(one.metadata["kind"] for one in kinds(root) if one.name == path[-1])
        document.put(("service", *path), kind.read(environ[variable]), Source(variable))


def _agree(environ: Mapping[str, str]) -> None:
    """Refuse two variables of which only one can be obeyed; neither is shown, it may be a secret."""
    for name, field_name in OTHER_NAMES.items():
        full = service_variable(field_name)
        said = {environ[one] for one in (name, full) if environ.get(one)}
        if len(said) > 1:
            raise ValueError(f"{name} must say the same as {full}, got something else")


def _paths() -> list[Path]:
    plain: list[Path] = [(name,) for name in names(ServiceSettings) if name not in TABLES]
    return plain + [(table, name) for table, kind in TABLES.items() for name in names(kind)]
