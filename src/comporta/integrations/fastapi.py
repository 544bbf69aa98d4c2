"""Limits on single routes of a FastAPI application, and its answers when an upstream refuses.

::

    limited = RateLimited(limiter, trusted_proxies=["10.0.0.0/8"])

    @app.get("/search", dependencies=[Depends(limited)])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from comporta.errors import RefusedError
from comporta.integrations.addresses import ClientAddress
from comporta.integrations.inbound import Headers, Inbound, Keys, Limits, Problem, refusal_problem

try:
    from fastapi import FastAPI, HTTPException, Request, Response
    from fastapi.requests import HTTPConnection
except ImportError as error:
    raise ImportError(
        "comporta.integrations.fastapi needs the package fastapi: pip install 'comporta[fastapi]'"
    ) from error

__all__ = ["ClientAddress", "RateLimited", "RequestRefusedError", "refusals_as_problems"]


class RequestRefusedError(HTTPException):
    """A request that may not pass; what FastAPI makes of it by itself is JSON with the same headers.

    With :func:`refusals_as_problems` it is problem+json.
    """

    def __init__(self, problem: Problem, headers: Headers) -> None:
        told = {"retry-after": str(problem.retry_after), **dict(headers)}
        super().__init__(problem.status, problem.detail, told)
        self.problem = problem


class RateLimited:
    """A dependency that lets a request pass if its limit does, and tells the client how it stands.

    The arguments are those of :class:`comporta.integrations.asgi.RateLimitMiddleware`, except that ``key``
    is given the request. On a WebSocket's route it is the handshake that passes or not.
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
        self._inbound = Inbound(
            limiter, key=key, trusted_proxies=trusted_proxies, cost=cost, name=name, on_error=on_error
        )

    async def __call__(self, request: HTTPConnection, response: Response) -> None:
        """Raise for a request that may not pass."""
        verdict = await self._inbound.admit(request)
        if verdict.problem is not None:
            raise RequestRefusedError(verdict.problem, verdict.headers)
        for name, value in verdict.headers:
            response.headers.append(name, value)


def refusals_as_problems(app: FastAPI) -> None:
    """Let an application answer with problem+json: 429 for its own limits, 503 when an upstream refused.

    The second is for a :class:`comporta.RefusedError` that a route let out: an open circuit, or a limit that
    left no room in time.
    """
    app.add_exception_handler(RequestRefusedError, _not_admitted)
    app.add_exception_handler(RefusedError, _refused)


async def _not_admitted(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestRefusedError)  # noqa: S101 - it was registered for no other
    return _response(error.problem, error.headers or {})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)  # noqa: S101 - it was registered for no other
    return _response(refusal_problem(error), {})


def _response(problem: Problem, headers: Mapping[str, str]) -> Response:
    return Response(problem.content, problem.status, {**headers, **dict(problem.headers)})
