"""From a file and variables to settings: short forms spelled out, variables laid over, values made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from comporta.settings.document import Document, read
from comporta.settings.environment import CONFIG_VARIABLE, STATE_VARIABLES, override
from comporta.settings.kinds import shown
from comporta.settings.lines import Path
from comporta.settings.service import TABLES, ServiceSettings, lay_defaults, lay_service
from comporta.settings.values import (
    NESTED,
    BreakerSettings,
    LimitSettings,
    Settings,
    UpstreamSettings,
)
from comporta.settings.written import Source, Written, names

_TOP = ("state", "limits", "namespaces", "breakers", "upstreams", "service")
_OF_LIMIT = ("fallback", "lease")
T = TypeVar("T", bound=Written)


def load_settings(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    service: bool = False,
) -> Settings:
    """Read the file, if there is one, and the environment.

    ``path`` left out is what ``COMPORTA_CONFIG`` says, else no file. ``COMPORTA_STATE``,
    ``COMPORTA_LIMIT_<NAME>``, ``COMPORTA_BREAKER_<NAME>_<FIELD>`` and ``COMPORTA_UPSTREAM_<NAME>_<FIELD>``
    override the file; ``REDIS_URL``, which others use too, only fills in for a ``state`` that nobody gave. A
    variable set to nothing counts as not set. Raises ``ValueError`` for what is wrong with either, and
    ``OSError`` if the file cannot be read.

    ``service``: with the upstreams that the service brings along, and ``DATABASE_URL``, which others use too.
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    document = Document("environment", {}, {}) if path is None else read(os.fspath(path))
    document.known((), _TOP)
    if service:
        lay_defaults(document, environ)
    for name in document.table(("limits",)):
        document.known(("limits", name), names(LimitSettings))
    for name in document.table(("breakers",)):
        document.known(("breakers", name), names(BreakerSettings))
    for name in document.table(("upstreams",)):
        _spell_out(document, ("upstreams", name))
    override(document, environ)
    lay_service(document, environ)
    return _settings(document, environ)


def _spell_out(document: Document, path: Path) -> None:
    """Put the short forms of an upstream where the long ones would be."""
    upstream = document.table(path)
    document.known(path, (*names(UpstreamSettings), *_OF_LIMIT))
    for name, kind in NESTED.items():
        if isinstance(upstream.get(name), dict):
            document.known((*path, name), names(kind))
    if "limit" in upstream and not isinstance(upstream["limit"], dict):
        source, limit = document.at((*path, "limit")), upstream.pop("limit")
        document.put((*path, "limit", "limit"), limit, source)
    for name in _OF_LIMIT:
        if name in upstream:
            _move(document, (*path, name), (*path, "limit", name))
    if isinstance(upstream.get("breaker"), dict):
        _name_breaker(document, path)


def _name_breaker(document: Document, path: Path) -> None:
    """Make the breaker written in an upstream one of the breakers, named like the upstream.

    In the state a breaker has one name, so it has one configuration: what is written in both places must
    agree, and what is written in one of them holds.
    """
    name = path[-1]
    source = document.at_table((*path, "breaker"))
    if name not in document.table(("breakers",)):
        document.put(("breakers", name), {}, source)
    for field in list(document.table((*path, "breaker"))):
        _move(document, (*path, "breaker", field), ("breakers", name, field))
    document.put((*path, "breaker"), name, document.at((*path, "breaker")))


def _move(document: Document, old: Path, new: Path) -> None:
    source = document.at(old)
    value = document.table(old[:-1]).pop(old[-1])
    there = document.table(new[:-1])
    if new[-1] in there and there[new[-1]] != value:
        raise ValueError(
            f"{source}: {old[-1]} must be the same as at {document.at(new)}, {shown(there[new[-1]])}, "
            f"got {shown(value)}"
        )
    document.put(new, value, source)


def _settings(document: Document, environ: Mapping[str, str]) -> Settings:
    state, state_source = _state(document, environ)
    namespaces = document.table(("namespaces",))
    return Settings(
        state,
        MappingProxyType({name: _limit(document, name) for name in document.table(("limits",))}),
        MappingProxyType(namespaces),
        MappingProxyType({name: _breaker(document, name) for name in document.table(("breakers",))}),
        MappingProxyType({name: _upstream(document, name) for name in document.table(("upstreams",))}),
        _service(document),
        source=document.name,
        sources=MappingProxyType(
            {f"namespaces.{name}": document.at(("namespaces", name)) for name in namespaces}
        ),
        state_source=state_source,
    )


def _limit(document: Document, name: str) -> LimitSettings:
    return _made(LimitSettings, document, ("limits", name))


def _breaker(document: Document, name: str) -> BreakerSettings:
    return _made(BreakerSettings, document, ("breakers", name))


def _upstream(document: Document, name: str) -> UpstreamSettings:
    path = ("upstreams", name)
    nested = {
        field: _made(NESTED[field], document, (*path, field))
        for field, value in document.table(path).items()
        if field in NESTED and isinstance(value, dict)
    }
    return _made(UpstreamSettings, document, path, nested)


def _service(document: Document) -> ServiceSettings:
    nested = {
        name: _made(kind, document, ("service", name))
        for name, kind in TABLES.items()
        if document.table(("service", name))
    }
    return _made(ServiceSettings, document, ("service",), nested)


def _made(kind: type[T], document: Document, path: Path, nested: Mapping[str, Any] | None = None) -> T:
    table = document.table(path)
    sources: dict[str, Source] = {name: document.at((*path, name)) for name in table}
    return kind(
        **{**table, **(nested or {})},
        source=str(document.at_table(path)),
        sources=MappingProxyType(sources),
    )


def _state(document: Document, environ: Mapping[str, str]) -> tuple[str | None, str]:
    state, where = document.values.get("state"), str(document.at(("state",)))
    if state is not None and (not isinstance(state, str) or not state):
        shown_state = shown(state) if isinstance(state, int | float | str) else f"a {type(state).__name__}"
        raise ValueError(f"{where}: state must be a URL such as 'redis://localhost', got {shown_state}")
    ours, others = STATE_VARIABLES
    for url, source in ((environ.get(ours), ours), (state, where), (environ.get(others), others)):
        if url:
            return url, source
    return None, "state"
