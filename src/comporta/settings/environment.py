"""Overrides settings with environment variables.

The name of a variable gives its target: ``COMPORTA_UPSTREAM_PNCP_MAX_WAIT`` is ``max_wait`` of the upstream
``pncp``. Names are compared in upper case, so a variable matches any spelling in the file. A variable whose
name is not in the file creates a new limit, breaker or upstream with a lower-case name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comporta.settings.field_types import FieldType, quoted_list, short_repr
from comporta.settings.schema import (
    LIMIT_SHORTCUTS,
    NESTED,
    BreakerSettings,
    LimitSettings,
    UpstreamSettings,
)
from comporta.settings.toml_document import TomlDocument
from comporta.settings.toml_positions import KeyPath
from comporta.settings.toml_table import Origin, SettingsTable, setting_names, type_of_setting

CONFIG_VARIABLE = "COMPORTA_CONFIG"
STATE_VARIABLES = ("COMPORTA_STATE", "REDIS_URL")
LIMIT_PREFIX = "COMPORTA_LIMIT_"
BREAKER_PREFIX = "COMPORTA_BREAKER_"
UPSTREAM_PREFIX = "COMPORTA_UPSTREAM_"

_PREFIX = "COMPORTA_"
_LIMIT_NUMBERS = ("rate", "capacity", "window")


@dataclass(frozen=True)
class VariableFamily:
    """Variables of the form ``prefix``, a name, and an ending that stands for a field.

    ``name_tables`` are the tables whose names a variable may use.
    """

    noun: str
    prefix: str
    table: str
    table_type: type[SettingsTable]
    fields: Mapping[str, KeyPath]
    name_tables: tuple[str, ...]

    def matches(self, variable: str) -> bool:
        """Whether a variable belongs to the family: every one with the prefix, so that a typo is an error."""
        if self.prefix:
            return variable.startswith(self.prefix)
        return not variable.startswith(_PREFIX) and variable.endswith(tuple(self.fields))

    def variable(self, name: str, ending: str) -> str:
        """Return the variable for this name and this ending."""
        return self.prefix + upper_snake(name) + ending


def upper_snake(name: str) -> str:
    """Return a name in the spelling of variables: upper case, with ``_`` for ``-`` and ``.``."""
    return re.sub("[-.]", "_", name).upper()


def limit_variable(name: str) -> str:
    """Return the environment variable that overrides a limit."""
    return LIMIT_PREFIX + upper_snake(name)


def upstream_variable(name: str, field: str) -> str:
    """Return the environment variable that overrides a field of an upstream: ``max_wait``, ``retry.base``."""
    return f"{UPSTREAM_PREFIX}{upper_snake(name)}_{upper_snake(field)}"


def breaker_variable(name: str, field: str) -> str:
    """Return the environment variable that overrides a field of a breaker."""
    return f"{BREAKER_PREFIX}{upper_snake(name)}_{upper_snake(field)}"


def _upstream_fields() -> dict[str, KeyPath]:
    plain = {f"_{name.upper()}": (name,) for name in setting_names(UpstreamSettings)}
    nested = {
        f"_{table.upper()}_{name.upper()}": (table, name)
        for table in ("retry", "degradation")
        for name in setting_names(NESTED[table])
    }
    limit = {f"_{name.upper()}": ("limit", name) for name in ("limit", *LIMIT_SHORTCUTS)}
    return {**plain, **nested, **limit}


VARIABLE_FAMILIES = (
    VariableFamily("limit", LIMIT_PREFIX, "limits", LimitSettings, {"": ("limit",)}, ("limits",)),
    VariableFamily(
        "upstream", UPSTREAM_PREFIX, "upstreams", UpstreamSettings, _upstream_fields(), ("upstreams",)
    ),
    VariableFamily(
        "breaker",
        BREAKER_PREFIX,
        "breakers",
        BreakerSettings,
        {f"_{name.upper()}": (name,) for name in setting_names(BreakerSettings)},
        ("breakers", "upstreams"),
    ),
    VariableFamily(
        "breaker",
        "",
        "breakers",
        BreakerSettings,
        {
            "_CIRCUIT_BREAKER_THRESHOLD": ("threshold",),
            "_CIRCUIT_BREAKER_COOLDOWN": ("cooldown_seconds",),
        },
        ("breakers", "upstreams"),
    ),
)


def apply_variables(document: TomlDocument, environ: Mapping[str, str]) -> None:
    """Write the values of the variables into the document; ignore variables that are empty."""
    upstreams = list(document.table(("upstreams",)))
    variables: dict[KeyPath, str] = {}
    for variable in sorted(environ):
        family = next((family for family in VARIABLE_FAMILIES if family.matches(variable)), None)
        if family is None or not environ[variable]:
            continue
        name, field = _target(document, family, variable)
        path = (family.table, name, *field)
        value = _field_type(family.table_type, field).parse(environ[variable])
        _check_agreement(document, variables, path, variable, value)
        variables[path] = variable
        _apply_value(document, path, value, Origin(variable))
    _check_upstream_names(document, upstreams, variables)


def _target(document: TomlDocument, family: VariableFamily, variable: str) -> tuple[str, KeyPath]:
    """Return the name and the field that a variable sets."""
    names = dict.fromkeys(name for table in family.name_tables for name in document.table((table,)))
    targets = [
        (name, field)
        for ending, field in family.fields.items()
        for name in names
        if family.variable(name, ending) == variable
    ]
    if len(targets) > 1:
        matches = quoted_list(name for name, _ in targets)
        raise ValueError(f"{variable} must match one {family.noun}, got {matches}")
    return targets[0] if targets else _new_target(family, variable)


def _new_target(family: VariableFamily, variable: str) -> tuple[str, KeyPath]:
    rest = variable.removeprefix(family.prefix)
    for ending in sorted(family.fields, key=len, reverse=True):
        if rest.endswith(ending):
            return rest.removesuffix(ending).lower(), family.fields[ending]
    raise ValueError(
        f"{variable} must be {family.prefix}<NAME>_<FIELD> with one of the fields "
        f"{', '.join(ending[1:] for ending in family.fields)}, got {short_repr(rest)}"
    )


def _field_type(table_type: type[SettingsTable], field: KeyPath) -> FieldType:
    return type_of_setting(NESTED[field[0]] if len(field) > 1 else table_type, field[-1])


def _check_agreement(
    document: TomlDocument, variables: dict[KeyPath, str], path: KeyPath, variable: str, value: Any
) -> None:
    """Raise an error for two variables that contradict each other."""
    if path in variables:
        other = document.get(path)
        if other != value:
            raise ValueError(
                f"{variable} must have the same value as {variables[path]}, {short_repr(other)}, "
                f"got {short_repr(value)}"
            )
    switch = path[:-1]
    if switch in variables and document.get(switch) is False:
        raise ValueError(
            f"{variable} must not be set together with {variables[switch]}=false, got {short_repr(value)}"
        )


def _apply_value(document: TomlDocument, path: KeyPath, value: Any, origin: Origin) -> None:
    if value is True and isinstance(document.get(path), dict):
        return  # the file already switches it on
    document.put(path, value, origin)
    if path[-1] == "limit":
        for number in _LIMIT_NUMBERS:
            document.table(path[:-1]).pop(number, None)
    if path[0] == "limits":
        document.set_origin(path[:-1], origin)


def _check_upstream_names(
    document: TomlDocument, upstreams: list[str], variables: Mapping[KeyPath, str]
) -> None:
    """Raise an error for an upstream that only variables name and that has no limit: a misspelt name."""
    for path, variable in variables.items():
        name = path[1]
        if (
            path[0] == "upstreams"
            and name not in upstreams
            and (*path[:2], "limit", "limit") not in variables
        ):
            raise ValueError(
                f"{variable} must name one of the upstreams, {quoted_list(upstreams)}, or "
                f"{upstream_variable(name, 'limit')} must be set too, got {short_repr(name)}"
            )
