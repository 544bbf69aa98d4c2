"""docs/reference/settings.md lists every setting with its variable, range and default, as in the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import comporta
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import DEFAULTS
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter
from comporta.limits.overrides.degradation import Degradation
from comporta.retry.budget import Budget
from comporta.retry.retry import Retry
from comporta.service.config import ServiceConfig, check_exposure
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
from comporta.settings.environment import VARIABLE_FAMILIES
from comporta.settings.service_schema import SERVICE_TABLES, service_variable
from comporta.settings.toml_table import SettingsTable, setting_fields, setting_names
from comporta.stores.memory import MemoryStore
from comporta.upstream.factory import DEGRADATION_RULE
from comporta.upstream.upstream import Upstream

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")

JUST_ABOVE = 1.000_001
VARIABLES_READ = re.compile(
    r"""
      environ(?:\.get\(|\[)\s*"([A-Z_]+)"
    | _VARIABLE\w*(?::\ Final)?\ =\ "([A-Z_]+)"
    | \b(COMPORTA_[A-Z_]+[A-Z])\b
    """,
    re.VERBOSE,
)


class DocumentedTable(NamedTuple):
    """A settings table: its heading, its class, its defaults, and a function that validates one field."""

    heading: str
    settings: type[SettingsTable]
    defaults: Mapping[str, Any]
    build: Callable[[str, Any], object]


class PageRow(NamedTuple):
    """A row of a table on the page."""

    field: str
    variable: str
    allowed: str
    default: str
    meaning: str


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: each.default for name, each in inspect.signature(function).parameters.items()}


def _table_builder(settings: type[SettingsTable]) -> Callable[[str, Any], object]:
    return lambda field, value: settings(**{field: value})


def _build_limit(field: str, value: Any) -> object:
    numbers: dict[str, Any] = {"rate": 1.0, "capacity": 1, "window": 1.0}
    numbers["strategy"] = LimitStrategy.SLIDING_WINDOW
    if field == "rate":
        numbers["strategy"] = LimitStrategy.TOKEN_BUCKET
    if field == "closed_after":
        numbers["fallback"] = "closed"
    return LimitConfig(**{**numbers, field: value})


def _build_upstream(field: str, value: Any) -> object:
    return Upstream("a", "1/s", state=MemoryStore(), **{"max_concurrent": 1, field: value})


def _build_retry(field: str, value: Any) -> object:
    if field.startswith("budget_"):
        return Budget(**{field.removeprefix("budget_"): value})
    longest = {"max_delay": 86_400} if field == "min_delay" else {}
    return Retry(**{**longest, field: value})


def _field_defaults(settings: type[SettingsTable]) -> dict[str, Any]:
    return {each.name: each.default for each in setting_fields(settings)}


_BUDGET = {f"budget_{name}": default for name, default in _defaults(Budget).items()}

TABLES = [
    DocumentedTable("[limits.<name>]", LimitSettings, _field_defaults(LimitSettings), _build_limit),
    DocumentedTable(
        "[breakers.<name>]",
        BreakerSettings,
        _defaults(BreakerConfig),
        lambda field, value: BreakerConfig(**{"slow_seconds": 1, "slow_ratio": 1, field: value}),
    ),
    DocumentedTable("[upstreams.<name>]", UpstreamSettings, _defaults(Upstream), _build_upstream),
    DocumentedTable("[upstreams.<name>.retry]", RetrySettings, {**_defaults(Retry), **_BUDGET}, _build_retry),
    DocumentedTable(
        "[upstreams.<name>.degradation]",
        DegradationSettings,
        {**_defaults(Degradation), "rule": DEGRADATION_RULE},
        lambda field, value: Degradation(BaseLimiter("1/s"), **{field: value}),
    ),
    DocumentedTable(
        "[service]", ServiceSettings, _field_defaults(ServiceSettings), _table_builder(ServiceSettings)
    ),
    DocumentedTable(
        "[service.search]", SearchSettings, _field_defaults(SearchSettings), _table_builder(SearchSettings)
    ),
    DocumentedTable(
        "[service.batch]", BatchSettings, _field_defaults(BatchSettings), _table_builder(BatchSettings)
    ),
    DocumentedTable(
        "[service.addresses]",
        AddressesSettings,
        _field_defaults(AddressesSettings),
        _table_builder(AddressesSettings),
    ),
]
FIELDS = [
    pytest.param(table, field, id=f"{table.heading}.{field}")
    for table in TABLES
    for field in setting_names(table.settings)
    if not (table.settings is ServiceSettings and field in SERVICE_TABLES)
]


def rows(heading: str) -> Iterator[PageRow]:
    """Yield the rows of the table below a heading."""
    section = re.search(rf"^## `{re.escape(heading)}`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert section, f"the page has no heading {heading}"
    for line in section[1].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(PageRow._fields) and cells[0].startswith("`"):
            yield PageRow(cells[0].strip("`"), *cells[1:])


def row_of(table: DocumentedTable, field: str) -> PageRow:
    """Return the only row of a field."""
    matches = [row for row in rows(table.heading) if row.field == field]
    assert len(matches) == 1, f"{table.heading} {field} must have one row, got {len(matches)}"
    return matches[0]


def variable_of(table: DocumentedTable, field: str) -> str:
    """Return the environment variable that overrides a field."""
    head, _, rest = table.heading.strip("[]").partition(".")
    if head == "service":
        return f"`{service_variable('.'.join(filter(None, (rest, field))))}`"
    path = (*rest.split(".")[1:], field)
    for family in VARIABLE_FAMILIES:
        if family.table == head and family.prefix:
            for ending, target in family.fields.items():
                if target == path or (field == "limit" and target == ("limit", "limit")):
                    return f"`{family.prefix}<NAME>{ending}`"
    return "none"


def default_text(value: Any) -> str:
    """Return a default as the page has to show it."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`[{', '.join(f'{each:g}' for each in value)}]`"
    return f"`{value:.15g}`"


@pytest.mark.parametrize(("table", "field"), FIELDS)
def test_page__each_field__has_a_row_with_its_variable_default_and_meaning(
    table: DocumentedTable, field: str
) -> None:
    row = row_of(table, field)
    default = table.defaults[field]
    assert row.variable == variable_of(table, field)
    assert row.allowed
    assert row.meaning
    if default is None or default is inspect.Parameter.empty:
        assert not row.default.startswith("`"), (
            "there is no default: the page must explain what happens without a value"
        )
    else:
        assert row.default.partition(" ")[0] == default_text(default).partition(" ")[0]
        assert row.default.startswith(default_text(default))


@pytest.mark.parametrize(("table", "field"), FIELDS)
def test_page__range_of_a_field__is_the_one_that_the_code_enforces(
    table: DocumentedTable, field: str
) -> None:
    allowed = row_of(table, field).allowed
    is_integer = "whole" in allowed
    for low, high in re.findall(r"\b([\d.]+) to ([\d.]+)\b", allowed):
        least, most = (int(low), int(high)) if is_integer else (float(low), float(high))
        table.build(field, least)
        table.build(field, most)
        for beyond in (
            least - 1 if is_integer else least - 0.000_1,
            most + 1 if is_integer else most * JUST_ABOVE,
        ):
            with pytest.raises(ValueError, match=field.removeprefix("budget_")):
                table.build(field, beyond)
    for high in re.findall(r"above 0, at most ([\d.]+)", allowed):
        table.build(field, float(high))
        for beyond in (0, float(high) * JUST_ABOVE):
            with pytest.raises(ValueError, match=field):
                table.build(field, beyond)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.heading)
def test_page__each_row__describes_a_field_that_exists(table: DocumentedTable) -> None:
    assert [row.field for row in rows(table.heading) if row.field not in setting_names(table.settings)] == []


def test_page__breakers_with_different_defaults__are_named() -> None:
    for name, values in DEFAULTS.items():
        for value in values.values():
            assert re.search(rf"`{name}`[^\n]*\b{value:g}\b", PAGE)


def test_page__variables_that_the_code_reads__are_all_listed() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(comporta.__file__).parent.rglob("*.py")]
    variables = {"".join(names) for text in texts for names in VARIABLES_READ.findall(text)}
    assert {"COMPORTA_STATE", "DATABASE_URL", "WEB_CONCURRENCY"} <= variables
    plain = {name for name in variables if not name.startswith(("COMPORTA_SERVICE_", "COMPORTA_UPSTREAM_"))}
    assert {name for name in plain if f"`{name}`" not in PAGE} == set()


def test_page__every_settings_table__has_a_heading() -> None:
    """The tests above check only the tables in ``TABLES``, so a new table has to be added there."""
    defined = {
        each for each in SettingsTable.__subclasses__() if each.__module__.startswith("comporta.settings")
    }
    assert {each.__name__ for each in defined} - {"Settings"} == {table.settings.__name__ for table in TABLES}
    assert {each.name for each in fields(ServiceSettings)} >= set(SERVICE_TABLES)


def test_toml__settings_shown_on_any_page__load_and_let_the_service_start(tmp_path: Path) -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    blocks = [
        (page, block)
        for page in pages
        for block in re.findall(
            r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    assert len(blocks) > 2
    for page, block in blocks:
        if "project" in tomllib.loads(block):
            continue  # an excerpt of a pyproject.toml
        file = tmp_path / f"{page.stem}.toml"
        file.write_text(block, encoding="utf-8")
        check_exposure(ServiceConfig.load(file, {}))
