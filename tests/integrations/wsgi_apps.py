"""Flask and Django applications with an inbound limit, for gunicorn.

``COMPORTA_TEST_STATE`` is the URL of the limit's store, ``COMPORTA_TEST_LIMIT`` the limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from comporta import CircuitOpenError, FixedWindowLimiter, RefusedError
from comporta.integrations.wsgi import WsgiApp, WsgiRateLimitMiddleware, refusal_problem

STATE = os.environ.get("COMPORTA_TEST_STATE", "memory://")
LIMIT = os.environ.get("COMPORTA_TEST_LIMIT", "1000/hour")


def limit_app(app: WsgiApp) -> WsgiRateLimitMiddleware:
    """Limit an application, with one limit for each client."""
    limiter = FixedWindowLimiter(LIMIT, STATE, "inbound")
    return WsgiRateLimitMiddleware(app, limiter, exempt=lambda environ: environ["PATH_INFO"] == "/health")


def flask_app() -> WsgiApp:
    """Return a Flask application whose upstream refuses a call."""
    from flask import Flask  # noqa: PLC0415 - each application imports its framework only

    app = Flask(__name__)

    @app.route("/")
    def hello() -> str:
        return "hello"

    @app.route("/health")
    def health() -> str:
        return "ok"

    @app.route("/refused")
    def refused() -> str:
        raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)

    @app.errorhandler(RefusedError)
    def handle_refusal(error: RefusedError) -> Any:
        problem = refusal_problem(error)
        return problem.content, problem.status, problem.headers

    app.wsgi_app = limit_app(app.wsgi_app)  # type: ignore[method-assign]
    return app


def django_refusals(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware of Django that answers refusals of upstreams."""
    from django.http import HttpResponse  # noqa: PLC0415 - as above

    def middleware(request: Any) -> Any:
        return get_response(request)

    def process_exception(_: Any, error: Exception) -> Any:
        if not isinstance(error, RefusedError):
            return None
        problem = refusal_problem(error)
        return HttpResponse(problem.content, status=problem.status, headers=dict(problem.headers))

    middleware.process_exception = process_exception  # type: ignore[attr-defined]
    return middleware


def django_app() -> WsgiApp:
    """Return a Django application whose upstream refuses a call."""
    from django.conf import settings  # noqa: PLC0415 - as above
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415
    from django.http import HttpResponse  # noqa: PLC0415
    from django.urls import path  # noqa: PLC0415

    def hello(_: Any) -> Any:
        return HttpResponse("hello")

    def refused(_: Any) -> Any:
        raise CircuitOpenError("pncp", "secret.internal does not answer", None, 12.1)

    urls = (path("", hello), path("health", hello), path("refused", refused))
    settings.configure(
        ROOT_URLCONF=urls,
        ALLOWED_HOSTS=["*"],
        MIDDLEWARE=["tests.integrations.wsgi_apps.django_refusals"],
        SECRET_KEY="for tests",  # noqa: S106 - nothing is signed with it
    )
    return limit_app(get_wsgi_application())
