"""``comporta serve``: serves searches and batch jobs over HTTP.

The command writes its options to environment variables, where the worker processes read them.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from comporta.cli.config import FILE_HELP, load_service_config
from comporta.database.urls import default_path, sqlite_path
from comporta.settings import CONFIG_VARIABLE, service_variable

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig


@click.command(epilog=FILE_HELP)
@click.option("--host", help="Listen on this address.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Listen on this port; 0 picks a free one.  [default: 8000]",
)
@click.option("--workers", type=click.IntRange(1, 64), help="Start this many processes.  [default: 1]")
@click.option(
    "--config", "file", metavar="FILE", type=click.Path(dir_okay=False), help="Read this settings file."
)
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Allow a host other than loopback without authentication.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Write the log in this format.  [default: text]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log messages of this level and above.  [default: info]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def serve(file: str | None, is_open: bool, as_json: bool, **options: str | int | None) -> None:
    """Serve searches and batch jobs over HTTP.

    By default the state is in shared:// and the data in a SQLite file in your
    data directory; set REDIS_URL and DATABASE_URL to use servers. On SIGTERM
    the service finishes the requests in flight and exits; on SIGHUP it reads
    the settings again and replaces its workers one after the other.
    """
    options["open"] = "true" if is_open else None
    for field, value in options.items():
        if value is not None:
            os.environ[service_variable(field)] = str(value)
    if file is not None:
        os.environ[CONFIG_VARIABLE] = os.path.abspath(file)  # noqa: PTH100 - keeps symbolic links
    config = load_service_config(None)
    _check_directory(config.database)
    _check_exposure(config)
    sys.path.append(str(Path.cwd()))  # for a processor in this directory; installed packages come first
    try:
        from comporta.service.sources.ssrf_guard import PrivateAddressError  # noqa: PLC0415 - likewise
        from comporta.service.supervisor import serve as run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise click.ClickException(f"serving needs {error.name}: pip install 'comporta[service]'") from None
    try:
        run(config, partial(print_address, as_json=as_json))
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {config.host}:{config.port}: {error.strerror or error}. "
            "Choose another address with --host or --port."
        ) from None
    except PrivateAddressError as error:
        raise click.ClickException(str(error)) from None


def _check_exposure(config: ServiceConfig) -> None:
    from comporta.service.config import check_exposure  # noqa: PLC0415 - slow to import

    try:
        check_exposure(config)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _check_directory(database: str) -> None:
    """Raise an error if the directory of the database file is missing.

    The service waits for an unreachable server or a locked file, but this error does not go away.
    """
    path = sqlite_path(database)
    if path is not None and path != default_path() and not path.parent.is_dir():
        raise click.ClickException(f"the directory of the database {path} does not exist. Create it first.")


def print_address(address: str, *, as_json: bool) -> None:
    """Print the address of the service."""
    click.echo(json.dumps({"address": address}) if as_json else f"Serving at {address}")
