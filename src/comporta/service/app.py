"""Builds the FastAPI application: routes, middleware, error handlers and lifespan.

It does not know how the application is served; see ``server``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from comporta import __version__
from comporta.service.batch.factory import BatchComponents
from comporta.service.config import ServiceConfig
from comporta.service.container import open_container
from comporta.service.middleware import ServiceMiddleware
from comporta.service.openapi.specification import install_openapi
from comporta.service.problems import install_error_handlers
from comporta.service.routes import admin, batch, dashboard, health, metrics, search, sheets
from comporta.service.routes import demo as demonstration


def create_app(
    config: ServiceConfig | None = None,
    *,
    batch_components: BatchComponents | None = None,
    demo_url: str | None = None,
) -> FastAPI:
    """Return the application.

    Without ``config`` it loads the settings file and the environment. ``batch_components`` replaces parts of
    the batch service that the configuration would select. ``demo_url`` is the URL of simulated portals; with
    it the dashboard shows switches that control them.
    """
    settings = ServiceConfig.load() if config is None else config

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_container(settings, batch_components, demo_url) as container:
            app.state.container = container
            yield

    # FastAPI's own documentation pages would load third-party scripts on the dashboard's origin, so they are
    # off. /openapi.json has the same content.
    app = FastAPI(title="comporta", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.config = settings
    install_error_handlers(app)
    app.add_middleware(
        ServiceMiddleware,
        body_bytes_max=settings.body_bytes_max,
        calls_max=settings.calls_max,
        trusted_proxies=settings.trusted_proxies,
        fast_endpoints={search.FAST_ROUTE.path: search.search},
    )
    app.router.routes.insert(0, search.FAST_ROUTE)
    # Routes are tried in this order. The routers have no prefix or dependencies to merge, so their routes are
    # added directly: include_router would build them again on the first request, in about 50 ms.
    for module in (search, health, metrics, batch, sheets, dashboard, admin):
        app.router.routes += module.router.routes
    if demo_url is not None:
        app.router.routes += demonstration.router.routes
    install_openapi(app, has_users=settings.auth != "none")
    return app
