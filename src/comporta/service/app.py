"""The application: routes, what is in front of them, and what they work with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from comporta import __version__
from comporta.service.batch.opening import BatchPlugs
from comporta.service.config import ServiceConfig
from comporta.service.front import Front
from comporta.service.parts import opened
from comporta.service.problems import errors_as_problems
from comporta.service.routes import admin, batch, health, metrics, search


def create_app(config: ServiceConfig | None = None, *, plugs: BatchPlugs | None = None) -> FastAPI:
    """Return the application; ``config`` left out is what the file and the environment say.

    ``plugs`` is what a program has batches do in the place of what is configured.
    """
    found = ServiceConfig.load() if config is None else config

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened(found, plugs) as parts:
            app.state.parts = parts
            yield

    app = FastAPI(title="comporta", version=__version__, lifespan=lifespan)
    app.state.config = found
    errors_as_problems(app)
    app.add_middleware(Front, body_bytes_max=found.body_bytes_max, calls_max=found.calls_max)
    for module in (search, health, metrics, batch, admin):  # the most asked for first: they are tried in turn
        app.include_router(module.router)
    return app
