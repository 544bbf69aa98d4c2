"""The commands there are, by what they are for, and what goes for all of them.

Each is a file of its own, brought in when it is asked for: the shell asks at every press of TAB, and half a
second would be felt.
"""

from __future__ import annotations

import errno
import os
from difflib import get_close_matches
from importlib import import_module
from typing import Any, cast

import click

from comporta import __version__
from comporta.cli import INTERRUPTED

COMPLETING = "_COMPORTA_COMPLETE"

SECTIONS = {
    "Look": {
        "top": "Watch a fleet: upstreams, workers, events.",
        "workers": "List the live workers of a state.",
        "doctor": "Check a state: what is good, what to mind, what to mend.",
        "cache": "See what a cache keeps, and how its keys fare.",
    },
    "Work": {
        "run": "Call an endpoint for every line of a file.",
        "serve": "Serve searches and batches until told to end.",
        "demo": "Show it all: several workers, failing portals, a page to watch them on.",
    },
    "Set up": {
        "config": "See what is configured, and by whom.",
        "db": "Bring the tables of a database up to date.",
        "batch": "Say which users may have sheets for their batches.",
        "completion": "Print what a shell needs to complete `comporta`.",
    },
}
NAMES = [name for commands in SECTIONS.values() for name in commands]


class Commands(click.Group):
    """All commands: what none of them has foreseen is still one sentence, and an exit code of the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return their names."""
        return NAMES

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Bring a command in."""
        if cmd_name not in NAMES:
            return None
        module = import_module(f"comporta.cli.{cmd_name}")
        return cast(click.Command, getattr(module, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one that was mistyped is answered with the nearest there is."""
        name = args[0]
        if name in NAMES or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        near = "".join(f" Did you mean {each!r}?" for each in get_close_matches(name, NAMES, 1))
        raise click.UsageError(f"No such command {name!r:.100}.{near}", ctx)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit; a shell that asks what could be typed is answered instead."""
        if COMPLETING in os.environ:
            import_module("comporta.cli.completion")  # bash has needs of its own
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A traceback is for mistakes of ours, never for those of users or servers."""
        from comporta.errors import ComportaError  # noqa: PLC0415 - no help page needs it

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except ComportaError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click ends quietly when nobody reads any more
            said = error.strerror or str(error)
            raise click.ClickException(f"{error.filename}: {said}" if error.filename else said) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by what they are for."""
        column = max(map(len, NAMES))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(column), said) for name, said in commands.items()])


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="What a command takes, it says itself: `comporta top --help`.",
)
@click.version_option(__version__, prog_name="comporta")
def comporta() -> None:
    """Fleet-wide resilience: one limit, obeyed by every worker."""
