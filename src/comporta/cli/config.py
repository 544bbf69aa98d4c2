"""``comporta config check``: validates the configuration and shows where each value comes from.

It opens neither the state nor the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from comporta.cli.console import json_option, new_table, print_rows, printable_text
from comporta.settings import ExplainedSetting, Settings

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig

FILE_HELP = (
    "FILE is a TOML file. Without it, the command uses the file that COMPORTA_CONFIG names, or none. "
    "Environment variables such as COMPORTA_SERVICE_<FIELD> override the file."
)


@click.group()
def config() -> None:
    """Check the configuration and show where each value comes from."""


@config.command(epilog=FILE_HELP)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--all", "everything", is_flag=True, help="Show default values too.")
@json_option
def check(file: str | None, everything: bool, as_json: bool) -> None:
    """Check the configuration of the service and show its values.

    The command exits with 2 if the configuration is invalid. It never shows a password or a token.
    """
    service_config = load_service_config(file)
    _check_limits(service_config.settings)
    explained = service_config.explain()
    settings = [setting for setting in explained if everything or setting.where != "default"]
    empty_message = "All values are defaults. To show them, add --all."
    records = [setting._asdict() for setting in settings]
    print_rows(records, lambda: _table(settings), empty_message, as_json=as_json)


def load_service_config(file: str | None) -> ServiceConfig:
    """Load the configuration; report a mistake in it as a usage error that names the file and the line."""
    from comporta.service.config import ServiceConfig  # noqa: PLC0415 - slow to import

    try:
        return ServiceConfig.load(file)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None


def _check_limits(settings: Settings) -> None:
    """Build every limit, because only that reveals an unknown strategy or a number out of range."""
    from comporta.limits.manager import make_limiter  # noqa: PLC0415 - slow to import
    from comporta.stores.memory import MemoryStore  # noqa: PLC0415 - slow to import

    upstream_limits = (upstream.limit for upstream in settings.upstreams.values())
    for limit in (*settings.limits.values(), *upstream_limits):
        if limit is not None:
            try:
                make_limiter("limit", limit, MemoryStore())
            except ValueError as error:
                raise click.UsageError(str(limit.error_with_origin(error))) from None


def _table(settings: list[ExplainedSetting]) -> Table:
    table = new_table("name", "value", "from")
    for name, value, where in settings:
        text = "-" if value is None else str(value)
        table.add_row(printable_text(name), printable_text(text), printable_text(where))
    return table
