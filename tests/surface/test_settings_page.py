"""docs/settings.md has every setting: its variable, what it may be and its default, as in the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import comporta
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import DEFAULTS
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.degradation import Degradation
from comporta.limits.limiter import BaseLimiter
from comporta.retry.budget import Budget
from comporta.retry.retry import Retry
from comporta.service.config import ServiceConfig
from comporta.settings import (
    AddressesSettings,
    BatchSettings,
    BreakerSettings,
    DegradationSettings,
    LimitSettings,
    RetrySettings,
    SearchSettings,
    ServiceSettings,
    UpstreamSettings,
)
from comporta.settings.environment import FAMILIES
from comporta.settings.service import TABLES, service_variable
from comporta.settings.written import Written, kinds, names
from comporta.stores.memory import MemoryStore
from comporta.upstream.upstream import Upstream

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")

FEW_MORE = 1.000_001
READ = re.compile(
    r"""
      environ(?:\.get\(|\[)\s*"([A-Z_]+)"
    | _VARIABLE\w*(?::\ Final)?\ =\ "([A-Z_]+)"
    | \b(COMPORTA_[A-Z_]+[A-Z])\b
    """,
    re.VERBOSE,
)


class Table(NamedTuple):
    """A table of settings: what its fields are without a word, and who says no to a value."""

    heading: str
    written: type[Written]
    defaults: Mapping[str, Any]
    build: Callable[[str, Any], object]


class Row(NamedTuple):
    """A row of the page."""

    field: str
    variable: str
    allowed: str
    default: str
    meaning: str


def _defaults(made_by: Callable[..., Any]) -> dict[str, Any]:
    return {name: one.default for name, one in inspect.signature(made_by).parameters.items()}


def _in_table(written: type[Written]) -> Callable[[str, Any], object]:
    return lambda field, value: written(**{field: value})


def _limit(field: str, value: Any) -> object:
    numbers = {"rate": 1.0, "capacity": 1, "window": 1.0, "strategy": LimitStrategy.SLIDING_WINDOW}
    if field == "rate":
        numbers["strategy"] = LimitStrategy.TOKEN_BUCKET
    return LimitConfig(**{**numbers, field: value})


def _upstream(field: str, value: Any) -> object:
    return Upstream("a", "1/s", state=MemoryStore(), **{"max_concurrent": 1, field: value})


def _retry(field: str, value: Any) -> object:
    if field.startswith("budget_"):
        return Budget(**{field.removeprefix("budget_"): value})
    return Retry(**{field: value})


def _own(written: type[Written]) -> dict[str, Any]:
    return {one.name: one.default for one in kinds(written)}


_BUDGET = {f"budget_{name}": default for name, default in _defaults(Budget).items()}

ALL = [
    Table("[limits.<name>]", LimitSettings, _own(LimitSettings), _limit),
    Table(
        "[breakers.<name>]",
        BreakerSettings,
        _defaults(BreakerConfig),
        lambda field, value: BreakerConfig(**{"slow_seconds": 1, "slow_ratio": 1, field: value}),
    ),
    Table("[upstreams.<name>]", UpstreamSettings, _defaults(Upstream), _upstream),
    Table("[upstreams.<name>.retry]", RetrySettings, {**_defaults(Retry), **_BUDGET}, _retry),
    Table(
        "[upstreams.<name>.degradation]",
        DegradationSettings,
        _defaults(Degradation),
        lambda field, value: Degradation(BaseLimiter("1/s"), **{field: value}),
    ),
    Table("[service]", ServiceSettings, _own(ServiceSettings), _in_table(ServiceSettings)),
    Table("[service.search]", SearchSettings, _own(SearchSettings), _in_table(SearchSettings)),
    Table("[service.batch]", BatchSettings, _own(BatchSettings), _in_table(BatchSettings)),
    Table("[service.addresses]", AddressesSettings, _own(AddressesSettings), _in_table(AddressesSettings)),
]
FIELDS = [
    pytest.param(table, field, id=f"{table.heading}.{field}")
    for table in ALL
    for field in names(table.written)
    if not (table.written is ServiceSettings and field in TABLES)
]


def rows(heading: str) -> Iterator[Row]:
    """Yield the rows under a heading."""
    section = re.search(rf"^## `{re.escape(heading)}`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section, f"no heading {heading}"
    for line in section[1].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(Row._fields) and cells[0].startswith("`"):
            yield Row(cells[0].strip("`"), *cells[1:])


def row_of(table: Table, field: str) -> Row:
    """Return the one row about a field."""
    found = [row for row in rows(table.heading) if row.field == field]
    assert len(found) == 1, f"{table.heading} {field} must have one row, got {len(found)}"
    return found[0]


def variable_of(table: Table, field: str) -> str:
    """Return the variable that lays a value over a field, as the code reads it."""
    head, _, rest = table.heading.strip("[]").partition(".")
    if head == "service":
        return f"`{service_variable('.'.join(filter(None, (rest, field))))}`"
    path = (*rest.split(".")[1:], field)
    for family in FAMILIES:
        if family.table == head and family.prefix:
            for ending, target in family.fields.items():
                if target == path or (field == "limit" and target == ("limit", "limit")):
                    return f"`{family.prefix}<NAME>{ending}`"
    return "none"


def shown(value: Any) -> str:
    """Return a default as the page shows it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{one:g}' for one in value)}]`"
    return f"`{value:.15g}`"


@pytest.mark.parametrize(("table", "field"), FIELDS)
def test_page__field_of_a_table__has_a_row_with_its_variable_default_and_meaning(
    table: Table, field: str
) -> None:
    row = row_of(table, field)
    default = table.defaults[field]
    assert row.variable == variable_of(table, field)
    assert row.allowed
    assert row.meaning
    if default is None or default is inspect.Parameter.empty:
        assert not row.default.startswith("`"), "nothing is the default: say in words what that means"
    else:
        assert row.default.partition(" ")[0] == shown(default).partition(" ")[0]
        assert row.default.startswith(shown(default))


@pytest.mark.parametrize(("table", "field"), FIELDS)
def test_page__range_of_a_field__is_where_the_code_begins_to_refuse(table: Table, field: str) -> None:
    allowed = row_of(table, field).allowed
    whole = "whole" in allowed
    for low, high in re.findall(r"\b([\d.]+) to ([\d.]+)\b", allowed):
        least, most = (int(low), int(high)) if whole else (float(low), float(high))
        table.build(field, least)
        table.build(field, most)
        for beyond in (least - 1 if whole else least - 0.000_1, most + 1 if whole else most * FEW_MORE):
            with pytest.raises(ValueError, match=field.removeprefix("budget_")):
                table.build(field, beyond)
    for high in re.findall(r"above 0, at most ([\d.]+)", allowed):
        table.build(field, float(high))
        for beyond in (0, float(high) * FEW_MORE):
            with pytest.raises(ValueError, match=field):
                table.build(field, beyond)


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.heading)
def test_page__rows_of_a_table__are_of_fields_that_there_are(table: Table) -> None:
    assert [row.field for row in rows(table.heading) if row.field not in names(table.written)] == []


def test_page__breakers_with_defaults_of_their_own__are_named() -> None:
    for name, values in DEFAULTS.items():
        for value in values.values():
            assert re.search(rf"`{name}`[^\n]*\b{value:g}\b", PAGE)


def test_page__variables_that_the_code_reads__are_all_there() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(comporta.__file__).parent.rglob("*.py")]
    found = {"".join(names) for text in texts for names in READ.findall(text)}
    assert {"COMPORTA_STATE", "DATABASE_URL", "WEB_CONCURRENCY"} <= found
    plain = {name for name in found if not name.startswith(("COMPORTA_SERVICE_", "COMPORTA_UPSTREAM_"))}
    assert {name for name in plain if f"`{name}`" not in PAGE} == set()


def test_every_settings_table__is_on_the_page() -> None:
    """A new kind of table that nobody wrote of would pass by everything above."""
    written = {one for one in Written.__subclasses__() if one.__module__.startswith("comporta.settings")}
    assert {one.__name__ for one in written} - {"Settings"} == {table.written.__name__ for table in ALL}
    assert {one.name for one in fields(ServiceSettings)} >= set(TABLES)


def test_toml__shown_on_any_page__is_read_without_a_mistake(tmp_path: Path) -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    blocks = [
        (page, block)
        for page in pages
        for block in re.findall(
            r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    assert len(blocks) > 2
    for page, block in blocks:
        file = tmp_path / f"{page.stem}.toml"
        file.write_text(block, encoding="utf-8")
        ServiceConfig.load(file, {})
