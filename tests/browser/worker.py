"""A worker with the switches of a demonstration: ``python -m tests.browser.worker PORT CONTROL``."""

from __future__ import annotations

import sys

import uvicorn

from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.service.listening import listening
from comporta.service.serving import _address, settings_of


def main(port: str, control: str) -> None:
    """Serve until a signal ends it."""
    config = ServiceConfig.load()
    app = create_app(config, demo=control)
    with listening(config.host, int(port)) as listener:
        print(f"Serving at {_address(listener)}", flush=True)  # noqa: T201 - whoever started it reads it
        uvicorn.Server(settings_of(config, app)).run([listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
