"""A worker with demo switches: ``python -m tests.browser.worker PORT CONTROL_URL``."""

from __future__ import annotations

import sys

import uvicorn

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.listener import listener_url, open_listener
from comporta.service.server import uvicorn_config


def main(port: str, control: str) -> None:
    """Serve until a signal ends it."""
    config = ServiceConfig.load()
    app = create_app(config, demo_url=control)
    with open_listener(config.host, int(port)) as listener:
        print(f"Serving at {listener_url(listener)}", flush=True)  # noqa: T201 - the parent process reads it
        uvicorn.Server(uvicorn_config(config, app)).run([listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
