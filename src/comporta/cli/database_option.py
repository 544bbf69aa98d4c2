"""The options ``--database`` and ``--config``, and the argument DATABASE: which database a command uses.

A command finds the database as ``comporta serve`` does. Without a URL it reads the settings of the service;
if they name none, the command uses the default one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from comporta.cli.completion import complete_database
from comporta.cli.config import load_service_config

F = TypeVar("F", bound=Callable[..., Any])

_FILE_KEY: Final = "comporta.cli.database_option.file"

_URLS: Final = (
    "is a URL such as sqlite:///file.db or postgresql://user:password@host/name. Without it, the command "
    "uses the database of the service: COMPORTA_SERVICE_DATABASE, or else that of the settings file that "
    "--config or COMPORTA_CONFIG names, or else DATABASE_URL, or else a file in your data directory."
)
DATABASE_HELP: Final = f"DATABASE {_URLS}"
DATABASE_OPTION_HELP: Final = f"URL {_URLS}"


def _store_file(context: click.Context, parameter: click.Parameter, file: str | None) -> None:
    context.meta[_FILE_KEY] = file


def _configured_url(context: click.Context, parameter: click.Parameter, url: str | None) -> str | None:
    """Return the URL of the command line or of the settings; ``None`` if neither has one."""
    if url or context.resilient_parsing:  # a shell completes the line
        return url
    return load_service_config(context.meta[_FILE_KEY]).settings.service.database


_config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    is_eager=True,  # before the callback of the database
    expose_value=False,
    callback=_store_file,
    help="Read the URL of the database from this settings file.",
)


def database_option(command: F) -> F:
    """Add ``--database`` and ``--config`` to a command, which gets the URL or ``None`` as ``database``."""
    option = click.option(
        "--database",
        metavar="URL",
        shell_complete=complete_database,
        callback=_configured_url,
        help="Use the tables in this database.",
    )
    return option(_config_option(command))


def database_argument(command: F) -> F:
    """Add the argument DATABASE and ``--config`` to a command."""
    argument = click.argument(
        "database", required=False, shell_complete=complete_database, callback=_configured_url
    )
    return argument(_config_option(command))
