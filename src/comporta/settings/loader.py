"""``load_settings``: reads the file, expands short forms, applies variables and builds ``Settings``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from comporta.settings.environment import CONFIG_VARIABLE, STATE_VARIABLES, apply_variables
from comporta.settings.field_types import short_repr
from comporta.settings.reloader import SettingsReloader
from comporta.settings.schema import (
    LIMIT_SHORTCUTS,
    NESTED,
    STATE_EXAMPLE,
    BreakerSettings,
    LimitSettings,
    Settings,
    UpstreamSettings,
)
from comporta.settings.service_schema import (
    SERVICE_TABLES,
    ServiceSettings,
    apply_service_defaults,
    apply_service_variables,
)
from comporta.settings.toml_document import TomlDocument, read_document
from comporta.settings.toml_positions import KeyPath
from comporta.settings.toml_table import Origin, SettingsTable, setting_names

_TOP_LEVEL_KEYS = ("state", "limits", "namespaces", "breakers", "upstreams", "service")
T = TypeVar("T", bound=SettingsTable)


def load_settings(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    service: bool = False,
    reload: bool = False,
) -> Settings:
    """Load settings from a file, if there is one, and from the environment.

    Without ``path``, the file is the one that ``COMPORTA_CONFIG`` names, or none. ``COMPORTA_STATE``,
    ``COMPORTA_LIMIT_<NAME>``, ``COMPORTA_BREAKER_<NAME>_<FIELD>`` and ``COMPORTA_UPSTREAM_<NAME>_<FIELD>``
    override the file. ``REDIS_URL``, which other programs use too, applies only if nothing else gives a
    ``state``. An empty variable counts as not set. Raises ``ValueError`` for a mistake in the file or in a
    variable, and ``OSError`` if the file cannot be read.

    ``service``: add the default upstreams of the service, and read ``DATABASE_URL``. ``reload``: apply
    changes of the file, within a second, to everything that is built from these settings
    (``reloader.py``).
    """
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    if not reload:
        return _load(path, environ, service)
    if path is None:
        raise ValueError(f"reload needs a file: pass a path, or set {CONFIG_VARIABLE}")
    file, variables = Path(path).absolute(), dict(environ)  # whatever changes later
    reloader = SettingsReloader(file, lambda: _load(file, variables, service))
    return replace(reloader.settings, reloader=reloader)


def _load(path: str | os.PathLike[str] | None, environ: Mapping[str, str], service: bool) -> Settings:
    document = TomlDocument("environment", {}, {}) if path is None else read_document(os.fspath(path))
    document.reject_unknown((), _TOP_LEVEL_KEYS)
    if service:
        apply_service_defaults(document, environ)
    for name in document.table(("limits",)):
        document.reject_unknown(("limits", name), setting_names(LimitSettings))
    for name in document.table(("breakers",)):
        document.reject_unknown(("breakers", name), setting_names(BreakerSettings))
    for name in document.table(("upstreams",)):
        _expand_short_forms(document, ("upstreams", name))
    apply_variables(document, environ)
    apply_service_variables(document, environ)
    return _build_settings(document, environ)


def _expand_short_forms(document: TomlDocument, path: KeyPath) -> None:
    """Replace the short forms of an upstream by the long ones."""
    upstream = document.table(path)
    document.reject_unknown(path, (*setting_names(UpstreamSettings), *LIMIT_SHORTCUTS))
    for name, table_type in NESTED.items():
        if isinstance(upstream.get(name), dict):
            document.reject_unknown((*path, name), setting_names(table_type))
    if "limit" in upstream and not isinstance(upstream["limit"], dict):
        origin, limit = document.field_origin((*path, "limit")), upstream.pop("limit")
        document.put((*path, "limit", "limit"), limit, origin)
    for name in LIMIT_SHORTCUTS:
        if name in upstream:
            _move_value(document, (*path, name), (*path, "limit", name))
    if isinstance(upstream.get("breaker"), dict):
        _extract_breaker(document, path)


def _extract_breaker(document: TomlDocument, path: KeyPath) -> None:
    """Move the breaker table of an upstream to the breakers, under the name of the upstream.

    A breaker has one name in the state, so it has one configuration: fields in both places must agree.
    """
    name = path[-1]
    origin = document.table_origin((*path, "breaker"))
    if name not in document.table(("breakers",)):
        document.put(("breakers", name), {}, origin)
    for field in list(document.table((*path, "breaker"))):
        _move_value(document, (*path, "breaker", field), ("breakers", name, field))
    document.put((*path, "breaker"), name, document.field_origin((*path, "breaker")))


def _move_value(document: TomlDocument, old: KeyPath, new: KeyPath) -> None:
    origin = document.field_origin(old)
    value = document.table(old[:-1]).pop(old[-1])
    target = document.table(new[:-1])
    if new[-1] in target and target[new[-1]] != value:
        raise ValueError(
            f"{origin}: {old[-1]} must be the same as at {document.field_origin(new)}, "
            f"{short_repr(target[new[-1]])}, got {short_repr(value)}"
        )
    document.put(new, value, origin)


def _build_settings(document: TomlDocument, environ: Mapping[str, str]) -> Settings:
    state, state_origin = _resolve_state(document, environ)
    namespaces = document.table(("namespaces",))
    return Settings(
        state,
        MappingProxyType({name: _build_limit(document, name) for name in document.table(("limits",))}),
        MappingProxyType(namespaces),
        MappingProxyType({name: _build_breaker(document, name) for name in document.table(("breakers",))}),
        MappingProxyType({name: _build_upstream(document, name) for name in document.table(("upstreams",))}),
        _build_service(document),
        origin=document.name,
        origins=MappingProxyType(
            {f"namespaces.{name}": document.field_origin(("namespaces", name)) for name in namespaces}
        ),
        state_origin=state_origin,
    )


def _build_limit(document: TomlDocument, name: str) -> LimitSettings:
    return _build_table(LimitSettings, document, ("limits", name))


def _build_breaker(document: TomlDocument, name: str) -> BreakerSettings:
    return _build_table(BreakerSettings, document, ("breakers", name))


def _build_upstream(document: TomlDocument, name: str) -> UpstreamSettings:
    path = ("upstreams", name)
    nested = {
        field: _build_table(NESTED[field], document, (*path, field))
        for field, value in document.table(path).items()
        if field in NESTED and isinstance(value, dict)
    }
    return _build_table(UpstreamSettings, document, path, nested)


def _build_service(document: TomlDocument) -> ServiceSettings:
    nested = {
        name: _build_table(table_type, document, ("service", name))
        for name, table_type in SERVICE_TABLES.items()
        if document.table(("service", name))
    }
    return _build_table(ServiceSettings, document, ("service",), nested)


def _build_table(
    table_type: type[T], document: TomlDocument, path: KeyPath, nested: Mapping[str, Any] | None = None
) -> T:
    table = document.table(path)
    origins: dict[str, Origin] = {name: document.field_origin((*path, name)) for name in table}
    return table_type(
        **{**table, **(nested or {})},
        origin=str(document.table_origin(path)),
        origins=MappingProxyType(origins),
    )


def _resolve_state(document: TomlDocument, environ: Mapping[str, str]) -> tuple[str | None, str]:
    state, where = document.values.get("state"), str(document.field_origin(("state",)))
    if state is not None and (not isinstance(state, str) or not state):
        received = short_repr(state) if isinstance(state, int | float | str) else f"a {type(state).__name__}"
        raise ValueError(f"{where}: state must be a URL such as {STATE_EXAMPLE!r}, got {received}")
    own_variable, common_variable = STATE_VARIABLES
    for url, origin in (
        (environ.get(own_variable), own_variable),
        (state, where),
        (environ.get(common_variable), common_variable),
    ):
        if url:
            return url, origin
    return None, "state"
