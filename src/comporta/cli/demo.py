"""``comporta demo``: parses the options and runs ``comporta.demo``."""

from __future__ import annotations

import errno
import socket
import sys
from importlib.util import find_spec

import click

_REQUIRED_MODULES = ("fastapi", "httpx2", "msgspec", "prometheus_client", "uvicorn")
_SCENARIOS = ("outage", "throttled", "slow", "redis-dies", "crowd")


@click.command()
@click.option(
    "--scenario",
    type=click.Choice(_SCENARIOS),
    help="Run this scenario.  [default: several of them in turn]",
)
@click.option(
    "--workers",
    default=3,
    show_default=True,
    type=click.IntRange(1, 16),
    help="Start this many workers of the service.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help="Serve the dashboard on this port; 0 picks a free one.  [default: 8000, or a free one]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    help="End after this many seconds.  [default: run until Ctrl-C; in a pipe, end after one scenario]",
)
def demo(scenario: str | None, workers: int, port: int | None, seconds: float | None) -> None:
    """Run a demo: several workers, failing portals and a live dashboard.

    The command starts the real service with simulated portals and users on this machine,
    breaks things, and explains in the terminal and on the dashboard what
    happens and where to look. Ctrl-C ends everything and leaves no files and
    no processes behind.

    \b
    outage      a portal goes down and recovers
    throttled   a portal rejects requests with 429
    slow        a portal answers too slowly
    redis-dies  the state server dies and returns empty
    crowd       twelve people search at once on a slow portal

    The command exits with 1 if a portal received more requests than its limit allows, or
    if a step of a scenario failed.
    """  # noqa: D301 - \b makes click keep the line breaks
    missing = [name for name in _REQUIRED_MODULES if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the demo needs {missing[0]}: pip install 'comporta[cli,service]'")
    from comporta.demo.config import INTERACTIVE_PACE, PIPED_PACE  # noqa: PLC0415 - slow to import
    from comporta.demo.processes import DemoError  # noqa: PLC0415 - likewise
    from comporta.demo.runner import DemoOptions, run_demo  # noqa: PLC0415 - likewise
    from comporta.demo.scenarios import SCENARIOS  # noqa: PLC0415 - likewise

    is_interactive = sys.stdout.isatty()
    options = DemoOptions(
        None if scenario is None else SCENARIOS[scenario],
        workers,
        seconds,
        INTERACTIVE_PACE if is_interactive else PIPED_PACE,
        run_forever=is_interactive,
    )
    with _bind_listener(port) as listener:
        try:
            status = run_demo(options, listener)
        except DemoError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(status)


def _bind_listener(port: int | None) -> socket.socket:
    from comporta.demo.config import HOST, PORT  # noqa: PLC0415 - as above
    from comporta.service.listener import open_listener  # noqa: PLC0415 - as above

    try:
        return open_listener(HOST, PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return open_listener(HOST, 0)
        raise click.ClickException(
            f"cannot listen on {HOST}:{port}: {error.strerror or error}. "
            "Choose another port with --port, or leave it out to use a free one."
        ) from None
