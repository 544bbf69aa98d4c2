"""The root command ``comporta``: lists the commands by purpose, and handles their errors.

It imports the module of a command on demand, because shell completion starts the program at every press of
TAB and must not take half a second.
"""

from __future__ import annotations

import errno
import os
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from comporta import __version__
from comporta.cli import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMPLETION_FLAG = "_COMPORTA_COMPLETE"

SECTIONS = {
    "Inspect": {
        "top": "Watch a fleet live: upstreams, workers and events.",
        "workers": "List the live workers of a state.",
        "doctor": "Check whether a state is fit for limits, and report what to fix.",
        "upstream": "Show upstreams, and change their circuit, limit or pause.",
        "cache": "Inspect, refresh and remove the entries of a cache.",
    },
    "Run": {
        "run": "Call an endpoint for every line of a file.",
        "runs": "Show the progress of shared runs and remove them.",
        "sim": "Simulate a fleet with the upstreams of a settings file.",
        "serve": "Serve searches and batch jobs over HTTP.",
        "demo": "Run a demo: several workers, failing portals and a live dashboard.",
    },
    "Set up": {
        "config": "Check the configuration and show where each value comes from.",
        "db": "Create and update the tables of a database.",
        "tokens": "Add, list and revoke the API tokens of the service.",
        "batch": "Manage which users may configure sheets for their batch jobs.",
        "completion": "Print the completion script for a shell.",
    },
}
SUMMARIES = {name: summary for commands in SECTIONS.values() for name, summary in commands.items()}
COMMAND_NAMES = list(SUMMARIES)


class RootCommand(click.Group):
    """The group of all commands; it reports errors that a command does not handle in one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return COMMAND_NAMES

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMAND_NAMES:
            return None
        module = import_module(f"comporta.cli.{cmd_name}")
        return cast(click.Command, getattr(module, cmd_name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown name, suggest the most similar one."""
        name = args[0]
        if name in COMMAND_NAMES or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        hint = "".join(f" Did you mean {each!r}?" for each in get_close_matches(name, COMMAND_NAMES, 1))
        raise click.UsageError(f"No such command {name!r:.100}.{hint}", ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a command's name or an option, without importing any command."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only shells need it

        names = [
            CompletionItem(name, help=summary)
            for name, summary in SUMMARIES.items()
            if name.startswith(incomplete)
        ]
        return names + super(click.Group, self).shell_complete(ctx, incomplete)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command, or answer a shell's request for completions, and exit."""
        if COMPLETION_FLAG in os.environ:
            import_module("comporta.cli.completion")  # registers our class for bash
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Only a bug in comporta shows a traceback, never a user's or a server's error."""
        from comporta.errors import ComportaError  # noqa: PLC0415 - --help does not need it

        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except ComportaError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # click exits quietly when the output has no reader
            reason = error.strerror or str(error)
            raise click.ClickException(f"{error.filename}: {reason}" if error.filename else reason) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by purpose."""
        column = max(map(len, COMMAND_NAMES))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(column), summary) for name, summary in commands.items()])


@click.group(
    cls=RootCommand,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="For the options of a command, run it with --help, such as `comporta top --help`.",
)
@click.version_option(__version__, prog_name="comporta")
def comporta() -> None:
    """Inspect and run services whose workers share limits, breakers and caches."""
