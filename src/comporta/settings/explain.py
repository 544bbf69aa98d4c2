"""Every value with where it came from, for people who wonder why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from comporta.settings.kinds import Secret, hidden
from comporta.settings.lines import table_shown
from comporta.settings.service import DEFAULT
from comporta.settings.values import Settings
from comporta.settings.written import Written, kinds

STATE_DEFAULT = "shared://"


class Explained(NamedTuple):
    """One value; ``where`` is ``file:line``, a variable or ``default``.

    A default that only whoever builds the thing knows is ``None`` here.
    """

    name: str
    value: Any
    where: str


def explain(settings: Settings, *, service: bool = False) -> list[Explained]:
    """Return all that can be configured for whatever is configured, and who said it. No password is shown.

    ``service``: what ``comporta serve`` takes as well.
    """
    found = [_state(settings)]
    if service:
        found += _fields(("service",), settings.service)
    for group, tables in (
        ("limits", settings.limits),
        ("breakers", settings.breakers),
        ("upstreams", settings.upstreams),
    ):
        for name, table in tables.items():
            found += _fields((group, name), table)
    for namespace, limit in settings.namespaces.items():
        source = settings.sources.get(f"namespaces.{namespace}")
        where = settings.source if source is None else source.where
        found.append(Explained(_name(("namespaces", namespace)), limit, where))
    return found


def _state(settings: Settings) -> Explained:
    if settings.state is None:
        return Explained("state", STATE_DEFAULT, DEFAULT)
    return Explained("state", hidden(settings.state), settings.state_source)


def _fields(path: tuple[str, ...], table: Written) -> Iterator[Explained]:
    for one in kinds(type(table)):
        value = getattr(table, one.name)
        if isinstance(value, Written):
            yield from _fields((*path, one.name), value)
            continue
        source = table.sources.get(one.name)
        unsaid = DEFAULT if value == one.default else table.source  # made in a program
        where = unsaid if source is None else source.where
        yield Explained(_name((*path, one.name)), _shown(one.metadata["kind"], value), where)


def _shown(kind: Any, value: Any) -> Any:
    if isinstance(kind, Secret):
        return value and "***"
    return hidden(value) if isinstance(value, str) else value


def _name(path: tuple[str, ...]) -> str:
    return table_shown(path)[1:-1]
