"""Transports for httpx2 and httpx: every request of a client goes by the rules of an upstream.

The two packages have the same classes under the same names, and neither knows the other's; so there is one
text, given the package; its two classes are all there is twice, because one awaits. What is wrapped is a
transport of the package's own.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta.retry import IDEMPOTENT_METHODS

if TYPE_CHECKING:
    from comporta.upstream.upstream import Upstream

PACKAGES = ("httpx2", "httpx")

REPEAT = "comporta_repeat"
"""In a request's ``extensions``: whether it may be sent again, where the method alone does not say so."""

REPORT = "comporta"
"""In a response's ``extensions``: the :class:`CallReport` of its call."""


class Transports(NamedTuple):
    """The two classes for one package."""

    blocking: type[Any]
    awaiting: type[Any]


@cache
def transports(name: str) -> Transports:
    """Return the classes for a package, ``"httpx2"`` or ``"httpx"``."""
    if name not in PACKAGES:
        raise ValueError(f"client must be one of {', '.join(map(repr, PACKAGES))}, got {name!r:.100}")
    try:
        package: Any = import_module(name)
    except ImportError as error:
        raise ImportError(f"a transport for {name} needs it: pip install 'comporta[{name}]'") from error
    return Transports(_blocking(package), _awaiting(package))


def _blocking(package: Any) -> type[Any]:
    transport: Any = package.BaseTransport

    class UpstreamTransport(transport):  # type: ignore[misc]  # known only when it is imported
        """Sends requests by the rules of an upstream, blocking."""

        def __init__(self, upstream: Upstream, inner: Any = None) -> None:
            self._upstream = upstream
            self._inner = package.HTTPTransport() if inner is None else inner

        def handle_request(self, request: Any) -> Any:
            """Send a request as soon as it may be sent."""
            again = _repeatable(request, package.ByteStream)
            call = self._upstream.prepared(self._inner.handle_request, (request,), {}, repeatable=again)
            response = call.made()
            response.extensions[REPORT] = call.report
            return response

        def __enter__(self) -> UpstreamTransport:
            self._inner.__enter__()
            return self

        def __exit__(self, *ended: object) -> None:
            self._inner.__exit__(*ended)

        def close(self) -> None:
            """Close what is wrapped."""
            self._inner.close()

    return UpstreamTransport


def _awaiting(package: Any) -> type[Any]:
    transport: Any = package.AsyncBaseTransport

    class AsyncUpstreamTransport(transport):  # type: ignore[misc]  # see above
        """Sends requests by the rules of an upstream, awaiting."""

        def __init__(self, upstream: Upstream, inner: Any = None) -> None:
            self._upstream = upstream
            self._inner = package.AsyncHTTPTransport() if inner is None else inner

        async def handle_async_request(self, request: Any) -> Any:
            """Send a request as soon as it may be sent."""
            again = _repeatable(request, package.ByteStream)
            call = self._upstream.prepared(self._inner.handle_async_request, (request,), {}, repeatable=again)
            response = await call.made_async()
            response.extensions[REPORT] = call.report
            return response

        async def __aenter__(self) -> AsyncUpstreamTransport:
            await self._inner.__aenter__()
            return self

        async def __aexit__(self, *ended: object) -> None:
            await self._inner.__aexit__(*ended)

        async def aclose(self) -> None:
            """Close what is wrapped."""
            await self._inner.aclose()

    return AsyncUpstreamTransport


def _repeatable(request: Any, kept: type[Any]) -> bool:
    """Whether a request may be sent twice: by its method or its sender's word, with a body that is kept."""
    told = request.extensions.get(REPEAT)
    allowed = request.method.upper() in IDEMPOTENT_METHODS if told is None else bool(told)
    return allowed and isinstance(request.stream, kept)
