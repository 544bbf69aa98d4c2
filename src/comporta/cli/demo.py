"""``comporta demo``: the service, simulated portals and users, and a story, as ``comporta.demo`` has them."""

from __future__ import annotations

import errno
import socket
import sys
from importlib.util import find_spec

import click

_NEEDED = ("fastapi", "httpx2", "msgspec", "prometheus_client", "uvicorn")
_STORIES = ("outage", "throttled", "slow", "redis-dies")


@click.command()
@click.option(
    "--scenario",
    type=click.Choice(_STORIES),
    help="The story to play; left out, some of them in turn.",
)
@click.option(
    "--workers", default=3, show_default=True, type=click.IntRange(1, 16), help="Workers of the service."
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Of the dashboard.  [default: 8000, or a free one]"
)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    help="End after so long.  [default: with Ctrl-C; off a terminal, after one story]",
)
def demo(scenario: str | None, workers: int, port: int | None, seconds: float | None) -> None:
    """Show it all: several workers, failing portals, a page to watch them on.

    Starts the real service with simulated portals and users on this machine,
    breaks things, and tells in the terminal and on the dashboard what happens
    and what to look at. Ctrl-C ends everything and leaves nothing behind.

    \b
    outage      a portal dies and comes back
    throttled   a portal wants fewer requests
    slow        a portal answers, but too late
    redis-dies  the server of the shared state is killed and comes back

    Exits with 1 if a promise was not kept: a portal saw more than its limit,
    or a step of the story did not come to be.
    """  # noqa: D301 - the sign by which click leaves lines as they are
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise click.ClickException(f"the demo needs {missing[0]}: pip install 'comporta[cli,service]'")
    from comporta.demo.plan import UNWATCHED, WATCHED  # noqa: PLC0415 - only who wants it pays for it
    from comporta.demo.processes import DemoError  # noqa: PLC0415 - likewise
    from comporta.demo.show import Asked, run  # noqa: PLC0415 - likewise
    from comporta.demo.stories import STORIES  # noqa: PLC0415 - likewise

    watched = sys.stdout.isatty()
    asked = Asked(
        None if scenario is None else STORIES[scenario],
        workers,
        seconds,
        WATCHED if watched else UNWATCHED,
        endless=watched,
    )
    with _listening(port) as listener:
        try:
            status = run(asked, listener)
        except DemoError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(status)


def _listening(port: int | None) -> socket.socket:
    from comporta.demo.plan import HOST, PORT  # noqa: PLC0415 - as above
    from comporta.service.listening import listening  # noqa: PLC0415 - as above

    try:
        return listening(HOST, PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return listening(HOST, 0)
        raise click.ClickException(
            f"{HOST}:{port} cannot be listened at: {error.strerror or error}. "
            "Choose another with --port, or none: a free one is taken then."
        ) from None
