"""``explain``: every setting with its value and where the value comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from comporta.settings.field_types import FieldType, SecretField, without_credentials
from comporta.settings.schema import Settings
from comporta.settings.service_schema import DEFAULT_ORIGIN
from comporta.settings.toml_positions import table_header
from comporta.settings.toml_table import SettingsTable, setting_fields, type_of

DEFAULT_STATE = "shared://"


class ExplainedSetting(NamedTuple):
    """One setting; ``where`` is ``file:line``, a variable or ``default``.

    ``None`` means a default that only the code that uses the setting knows.
    """

    name: str
    value: Any
    where: str


def explain(settings: Settings, *, service: bool = False) -> list[ExplainedSetting]:
    """Return every setting of everything that is configured, without passwords and tokens.

    ``service``: include the settings of ``comporta serve``.
    """
    explained = [_explain_state(settings)]
    if service:
        explained += _explain_fields(("service",), settings.service)
    for group, tables in (
        ("limits", settings.limits),
        ("breakers", settings.breakers),
        ("upstreams", settings.upstreams),
    ):
        for name, table in tables.items():
            explained += _explain_fields((group, name), table)
    for namespace, limit in settings.namespaces.items():
        origin = settings.origins.get(f"namespaces.{namespace}")
        where = settings.origin if origin is None else origin.where
        explained.append(ExplainedSetting(_display_name(("namespaces", namespace)), limit, where))
    return explained


def _explain_state(settings: Settings) -> ExplainedSetting:
    if settings.state is None:
        return ExplainedSetting("state", DEFAULT_STATE, DEFAULT_ORIGIN)
    return ExplainedSetting("state", without_credentials(settings.state), settings.state_origin)


def _explain_fields(path: tuple[str, ...], table: SettingsTable) -> Iterator[ExplainedSetting]:
    for each in setting_fields(type(table)):
        value = getattr(table, each.name)
        if isinstance(value, SettingsTable):
            yield from _explain_fields((*path, each.name), value)
            continue
        origin = table.origins.get(each.name)
        if origin is not None:
            where = origin.where
        else:  # a default, or a value set by a program
            where = DEFAULT_ORIGIN if value == each.default else table.origin
        name = _display_name((*path, each.name))
        yield ExplainedSetting(name, _display_value(type_of(each), value), where)


def _display_value(field_type: FieldType, value: Any) -> Any:
    if isinstance(field_type, SecretField):
        return value and "***"
    return without_credentials(value) if isinstance(value, str) else value


def _display_name(path: tuple[str, ...]) -> str:
    return table_header(path)[1:-1]
