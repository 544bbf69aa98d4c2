"""``comporta serve``: serves searches and batch jobs over HTTP.

The command writes its options to environment variables, where the worker processes read them.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import click

from comporta.cli.config import FILE_HELP, load_service_config
from comporta.database.urls import default_path, sqlite_path
from comporta.settings import CONFIG_VARIABLE, service_variable


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
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def serve(host: str | None, port: int | None, workers: int | None, file: str | None, as_json: bool) -> None:
    """Serve searches and batch jobs over HTTP.

    By default the state is in shared:// and the data in a SQLite file in your
    data directory; set REDIS_URL and DATABASE_URL to use servers. On SIGTERM
    the service finishes the requests in flight and exits.
    """
    options = {"host": host, "port": port, "workers": workers}
    for field, value in options.items():
        if value is not None:
            os.environ[service_variable(field)] = str(value)
    if file is not None:
        os.environ[CONFIG_VARIABLE] = os.path.abspath(file)  # noqa: PTH100 - keeps symbolic links
    config = load_service_config(None)
    _check_directory(config.database)
    sys.path.append(str(Path.cwd()))  # for a processor in this directory; installed packages come first
    try:
        from comporta.service.server import serve as run  # noqa: PLC0415 - an extra
        from comporta.service.sources.ssrf_guard import PrivateAddressError  # noqa: PLC0415 - likewise
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
