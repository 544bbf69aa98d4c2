"""The commands there are, by what they are for, and what goes for all of them."""

from __future__ import annotations

from typing import Any

import click

from comporta import __version__
from comporta.cli.batch import batch
from comporta.cli.cache import cache
from comporta.cli.completion import completion
from comporta.cli.config import config
from comporta.cli.db import db
from comporta.cli.demo import demo
from comporta.cli.doctor import doctor
from comporta.cli.run import run
from comporta.cli.serve import serve
from comporta.cli.top import top
from comporta.cli.workers import workers
from comporta.errors import ComportaError

INTERRUPTED = 130

SECTIONS = {
    "Look": (top, workers, doctor, cache),
    "Work": (run, serve, demo),
    "Set up": (config, db, batch, completion),
}


class Commands(click.Group):
    """All commands: what none of them has foreseen is still one sentence, and an exit code of the table."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A traceback is for mistakes of ours, never for those of users or servers."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except ComportaError as error:
            raise click.ClickException(str(error)) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what they are for."""
        names = list(self.list_commands(ctx))
        column = max(map(len, names))
        room = formatter.width - column - 6
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(each.name).ljust(column), each.get_short_help_str(room)) for each in commands]
                )


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`comporta COMMAND --help` says what a command takes.",
)
@click.version_option(__version__, prog_name="comporta")
def comporta() -> None:
    """Fleet-wide resilience: one limit, obeyed by every worker."""


for _commands in SECTIONS.values():
    for _command in _commands:
        comporta.add_command(_command)
