"""``comporta config check``: what is in force, and who said so; nothing is opened for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table

from comporta.cli.output import json_option, plain, print_json, print_table, table_of
from comporta.settings import Explained

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig

FILE_HELP = (
    "FILE is a TOML file; left out, it is COMPORTA_CONFIG, else none. COMPORTA_SERVICE_<FIELD> and the "
    "variables of limits, breakers and upstreams are laid over it."
)


@click.group()
def config() -> None:
    """See what is configured, and by whom."""


@config.command(epilog=FILE_HELP)
@click.argument("file", required=False, type=click.Path(dir_okay=False))
@click.option("--all", "everything", is_flag=True, help="What is only a default, too.")
@json_option
def check(file: str | None, everything: bool, as_json: bool) -> None:
    """Check the configuration of the service, and show what is in force.

    Exits with 2 if something is wrong. No password or token is shown.
    """
    found = [one for one in loaded(file).explained() if everything or one.where != "default"]
    if as_json:
        print_json([one._asdict() for one in found])
    elif found:
        print_table(_table(found))
    else:
        click.echo("All is as it is by default; --all shows it.")


def loaded(file: str | None) -> ServiceConfig:
    """Return what is configured; what is wrong is a usage error, with its place."""
    from comporta.service.config import ServiceConfig  # noqa: PLC0415 - only who serves needs it

    try:
        return ServiceConfig.load(file)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"{error.filename}: {error.strerror}") from None


def _table(found: list[Explained]) -> Table:
    table = table_of("name", "value", "from")
    for one in found:
        table.add_row(plain(one.name), plain("-" if one.value is None else str(one.value)), plain(one.where))
    return table
