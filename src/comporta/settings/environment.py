"""What environment variables say, laid over what the file says.

A variable names its target by its own name: ``COMPORTA_UPSTREAM_PNCP_MAX_WAIT`` is ``max_wait`` of the
upstream ``pncp``. Names are compared in capitals, so whoever is in the file is found whatever its spelling;
a variable about nobody in the file makes a new one, named in small letters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comporta.settings.document import Document
from comporta.settings.kinds import listed, shown
from comporta.settings.lines import Path
from comporta.settings.values import (
    NESTED,
    BreakerSettings,
    LimitSettings,
    UpstreamSettings,
)
from comporta.settings.written import Source, Written, kinds, names

CONFIG_VARIABLE = "COMPORTA_CONFIG"
STATE_VARIABLES = ("COMPORTA_STATE", "REDIS_URL")
LIMIT_PREFIX = "COMPORTA_LIMIT_"
BREAKER_PREFIX = "COMPORTA_BREAKER_"
UPSTREAM_PREFIX = "COMPORTA_UPSTREAM_"

_OURS = "COMPORTA_"
_NUMBERS = ("rate", "capacity", "window")


@dataclass(frozen=True)
class Family:
    """Variables of one form: ``prefix``, a name, and one of the endings, each of which is a field."""

    what: str
    prefix: str
    table: str
    root: type[Written]
    fields: Mapping[str, Path]
    like: tuple[str, ...]  # the tables whose names are looked through

    def takes(self, variable: str) -> bool:
        """Whether a variable is one of these: all with the prefix, so that none is ignored."""
        if self.prefix:
            return variable.startswith(self.prefix)
        return not variable.startswith(_OURS) and variable.endswith(tuple(self.fields))

    def variable(self, name: str, ending: str) -> str:
        """Return the variable for a field of one that has this name."""
        return self.prefix + capitals(name) + ending


def capitals(name: str) -> str:
    """Return a name as it stands in variables."""
    return re.sub("[-.]", "_", name).upper()


def limit_variable(name: str) -> str:
    """Return the environment variable that overrides a limit."""
    return LIMIT_PREFIX + capitals(name)


def upstream_variable(name: str, field: str) -> str:
    """Return the environment variable that overrides a field of an upstream: ``max_wait``, ``retry.base``."""
    return f"{UPSTREAM_PREFIX}{capitals(name)}_{capitals(field)}"


def breaker_variable(name: str, field: str) -> str:
    """Return the environment variable that overrides a field of a breaker."""
    return f"{BREAKER_PREFIX}{capitals(name)}_{capitals(field)}"


def _upstream_fields() -> dict[str, Path]:
    plain = {f"_{name.upper()}": (name,) for name in names(UpstreamSettings)}
    nested = {
        f"_{table.upper()}_{name.upper()}": (table, name)
        for table in ("retry", "degradation")
        for name in names(NESTED[table])
    }
    limit = {f"_{name.upper()}": ("limit", name) for name in ("limit", "fallback", "lease")}
    return {**plain, **nested, **limit}


FAMILIES = (
    Family("limit", LIMIT_PREFIX, "limits", LimitSettings, {"": ("limit",)}, ("limits",)),
    Family("upstream", UPSTREAM_PREFIX, "upstreams", UpstreamSettings, _upstream_fields(), ("upstreams",)),
    Family(
        "breaker",
        BREAKER_PREFIX,
        "breakers",
        BreakerSettings,
        {f"_{name.upper()}": (name,) for name in names(BreakerSettings)},
        ("breakers", "upstreams"),
    ),
    Family(
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


def override(document: Document, environ: Mapping[str, str]) -> None:
    """Lay the variables over the document. One that is set to nothing counts as not set."""
    upstreams = list(document.table(("upstreams",)))
    said: dict[Path, str] = {}
    for variable in sorted(environ):
        family = next((family for family in FAMILIES if family.takes(variable)), None)
        if family is None or not environ[variable]:
            continue
        name, field = _target(document, family, variable)
        path = (family.table, name, *field)
        value = _kind(family.root, field).read(environ[variable])
        _agree(document, said, path, variable, value)
        said[path] = variable
        _lay(document, path, value, Source(variable))
    _no_strangers(document, upstreams, said)


def _target(document: Document, family: Family, variable: str) -> tuple[str, Path]:
    """Return whose field a variable says."""
    known = dict.fromkeys(name for table in family.like for name in document.table((table,)))
    found = [
        (name, field)
        for ending, field in family.fields.items()
        for name in known
        if family.variable(name, ending) == variable
    ]
    if len(found) > 1:
        raise ValueError(f"{variable} must mean one {family.what}, got {listed(name for name, _ in found)}")
    return found[0] if found else _new(family, variable)


def _new(family: Family, variable: str) -> tuple[str, Path]:
    rest = variable.removeprefix(family.prefix)
    for ending in sorted(family.fields, key=len, reverse=True):
        if rest.endswith(ending):
            return rest.removesuffix(ending).lower(), family.fields[ending]
    raise ValueError(
        f"{variable} must be {family.prefix}<NAME>_<FIELD> with one of the fields "
        f"{', '.join(ending[1:] for ending in family.fields)}, got {shown(rest)}"
    )


def _kind(root: type[Written], field: Path) -> Any:
    table = NESTED[field[0]] if len(field) > 1 else root
    return next(one.metadata["kind"] for one in kinds(table) if one.name == field[-1])


def _agree(document: Document, said: dict[Path, str], path: Path, variable: str, value: Any) -> None:
    """Refuse two variables of which only one can be obeyed."""
    if path in said:
        other = document.get(path)
        if other != value:
            raise ValueError(
                f"{variable} must say the same as {said[path]}, {shown(other)}, got {shown(value)}"
            )
    switch = path[:-1]
    if switch in said and document.get(switch) is False:
        raise ValueError(f"{variable} must not be set beside {said[switch]}=false, got {shown(value)}")


def _lay(document: Document, path: Path, value: Any, source: Source) -> None:
    if value is True and isinstance(document.get(path), dict):
        return  # it is on already, as the file says
    document.put(path, value, source)
    if path[-1] == "limit":
        for number in _NUMBERS:
            document.table(path[:-1]).pop(number, None)
    if path[0] == "limits":
        document.place(path[:-1], source)


def _no_strangers(document: Document, upstreams: list[str], said: Mapping[Path, str]) -> None:
    """Refuse an upstream that only variables speak of and none gives a limit: the name is misspelt."""
    for path, variable in said.items():
        name = path[1]
        if path[0] == "upstreams" and name not in upstreams and (*path[:2], "limit", "limit") not in said:
            raise ValueError(
                f"{variable} must be about one of the upstreams, {listed(upstreams)}, or "
                f"{upstream_variable(name, 'limit')} be set too, got {shown(name)}"
            )
