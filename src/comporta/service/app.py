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
from comporta.service.routes import admin, batch, dashboard, health, metrics, search
from comporta.service.routes import demo as demonstration


def create_app(
    config: ServiceConfig | None = None, *, plugs: BatchPlugs | None = None, demo: str | None = None
) -> FastAPI:
    """Return the application; ``config`` left out is what the file and the environment say.

    ``plugs`` is what a program has batches do in the place of what is configured. ``demo`` is the address of
    simulated portals whose switches the dashboard shows; left out, there are no routes to any.
    """
    found = ServiceConfig.load() if config is None else config

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opened(found, plugs, demo) as parts:
            app.state.parts = parts
            yield

    # FastAPI's own pages would load scripts of others on the dashboard's origin; /openapi.json has it all
    app = FastAPI(title="comporta", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.config = found
    errors_as_problems(app)
    app.add_middleware(Front, body_bytes_max=found.body_bytes_max, calls_max=found.calls_max)
    app.router.routes.insert(0, search.PLAIN)
    for module in (search, health, metrics, batch, dashboard, admin):  # most asked for first: tried in turn
        app.include_router(module.router)
    if demo is not None:
        app.include_router(demonstration.router)
    _prepare(app)
    return app


def _prepare(app: FastAPI) -> None:
    """Look for a path that nobody has: the framework makes what routes need when they are first passed by.

    That takes a twentieth of a second, and would hold up whoever else is served at that moment.
    """
    nowhere = {
        "type": "http",
        "method": "GET",
        "path": "/.",
        "root_path": "",
        "headers": [],
        "path_params": {},
    }
    for route in app.router.routes:
        route.matches(nowhere)
