"""The commands there are."""

from __future__ import annotations

import click

from comporta import __version__
from comporta.cli.batch import batch
from comporta.cli.cache import cache
from comporta.cli.config import config
from comporta.cli.db import db
from comporta.cli.demo import demo
from comporta.cli.doctor import doctor
from comporta.cli.run import run
from comporta.cli.serve import serve
from comporta.cli.workers import workers


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="comporta")
def comporta() -> None:
    """Fleet-wide resilience: one limit, obeyed by every worker."""


comporta.add_command(batch)
comporta.add_command(cache)
comporta.add_command(config)
comporta.add_command(db)
comporta.add_command(demo)
comporta.add_command(doctor)
comporta.add_command(run)
comporta.add_command(serve)
comporta.add_command(workers)
