"""Rate limits on single routes of a FastAPI application, and handlers for refusals.

::

    limited = RateLimited(limiter, trusted_proxies=["10.0.0.0/8"])

    @app.get("/search", dependencies=[Depends(limited)])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from comporta.errors import RefusedError
from comporta.integrations.client_ip import ClientAddress
from comporta.integrations.inbound_limit import (
    Headers,
    InboundLimit,
    Keys,
    Limits,
    RefusalProblem,
    refusal_problem,
)

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.requests import HTTPConnection
except ImportError as error:
    raise ImportError(
        "comporta.integrations.fastapi needs the package fastapi: pip install 'comporta[fastapi]'"
    ) from error

__all__ = ["ClientAddress", "RateLimited", "RequestRefusedError", "add_problem_handlers"]


class RequestRefusedError(HTTPException):
    """The request was refused. FastAPI's response is JSON with the same status and headers.

    With :func:`add_problem_handlers` it is problem+json.
    """

    def __init__(self, problem: RefusalProblem, headers: Headers) -> None:
        fields = {"retry-after": str(problem.retry_after), **dict(headers)}
        super().__init__(problem.status, problem.detail, fields)
        self.problem = problem


class RateLimited:
    """A dependency that refuses requests beyond a limit, and sends ``RateLimit`` headers.

    The arguments are those of :class:`comporta.integrations.asgi.RateLimitMiddleware`, except that ``key``
    receives the request. On a WebSocket route it accepts or refuses the handshake.
    """

    def __init__(
        self,
        limiter: Limits,
        *,
        key: Callable[[Request], Keys | Awaitable[Keys]] | None = None,
        trusted_proxies: Iterable[str] = (),
        cost: int = 1,
        name: str | None = None,
        on_error: str = "open",
    ) -> None:
        self._limit = InboundLimit(
            limiter, key=key, trusted_proxies=trusted_proxies, cost=cost, name=name, on_error=on_error
        )

    async def __call__(self, request: HTTPConnection, response: Response) -> None:
        """Raise a :class:`RequestRefusedError` if the limit refuses the request."""
        decision = await self._limit.admit(request)
        if decision.problem is not None:
            raise RequestRefusedError(decision.problem, decision.headers)
        for name, value in decision.headers:
            response.headers.append(name, value)


def add_problem_handlers(app: FastAPI) -> None:
    """Make an application answer refusals with problem+json: 429 for its limits, 503 for its upstreams.

    The 503 is for a :class:`comporta.RefusedError` that a route raises: an open circuit, or no capacity in
    time.
    """
    app.add_exception_handler(RequestRefusedError, _handle_request_refused)
    app.add_exception_handler(RefusedError, _handle_refused)


async def _handle_request_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefusedError)  # noqa: S101 - it is registered for this class only
    return _response(error.problem, error.headers or {})


async def _handle_refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)  # noqa: S101 - it is registered for this class only
    return _response(refusal_problem(error), {})


def _response(problem: RefusalProblem, headers: Mapping[str, str]) -> Response:
    return Response(problem.content, problem.status, {**headers, **dict(problem.headers)})
