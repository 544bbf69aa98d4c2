"""``comporta serve``: the search and the batches, over HTTP.

What is typed is laid over the environment, so that worker processes find it there.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import click

from comporta.cli.config import FILE_HELP, loaded
from comporta.database.urls import default_path, file_of
from comporta.settings import CONFIG_VARIABLE, service_variable


@click.command(epilog=FILE_HELP)
@click.option("--host", help="The address to listen at.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help="The port; 0: a free one.  [default: 8000]")
@click.option("--workers", type=click.IntRange(1, 64), help="How many processes.  [default: 1]")
@click.option("--config", "file", metavar="FILE", type=click.Path(dir_okay=False), help="The file.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON, for scripts.")
def serve(host: str | None, port: int | None, workers: int | None, file: str | None, as_json: bool) -> None:
    """Serve searches and batches until told to end.

    State is in shared://, data in SQLite in the user's data folder; REDIS_URL
    and DATABASE_URL move them to servers. SIGTERM: what is under way is
    finished.
    """
    typed = {"host": host, "port": port, "workers": workers}
    for field, value in typed.items():
        if value is not None:
            os.environ[service_variable(field)] = str(value)
    if file is not None:
        os.environ[CONFIG_VARIABLE] = os.path.abspath(file)  # noqa: PTH100 - as it was written, links and all
    config = loaded(None)
    _check_folder(config.database)
    sys.path.append(str(Path.cwd()))  # a processor may lie here; whatever is installed comes first
    try:
        from comporta.service.serving import serve as run  # noqa: PLC0415 - an extra
        from comporta.service.sources.addresses import PrivateAddressError  # noqa: PLC0415 - likewise
    except ModuleNotFoundError as error:
        raise click.ClickException(f"serving needs {error.name}: pip install 'comporta[service]'") from None
    try:
        run(config, partial(tell, as_json=as_json))
    except OSError as error:
        raise click.ClickException(
            f"{config.host}:{config.port} cannot be listened at: {error.strerror or error}. "
            "Choose another with --host or --port."
        ) from None
    except PrivateAddressError as error:
        raise click.ClickException(str(error)) from None


def _check_folder(database: str) -> None:
    """Refuse a file that can never be: of a server that is away, or a file that is locked, one may wait."""
    path = file_of(database)
    if path is not None and path != default_path() and not path.parent.is_dir():
        raise click.ClickException(f"the database {path} must be in a folder that is there: make it first.")


def tell(address: str, *, as_json: bool) -> None:
    """Say where it serves."""
    click.echo(json.dumps({"address": address}) if as_json else f"Serving at {address}")
