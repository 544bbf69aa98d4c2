"""An adapter for requests: every request of a session goes by the rules of an upstream, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from comporta.retry import IDEMPOTENT_METHODS

if TYPE_CHECKING:
    from comporta.upstream.upstream import Upstream


class UpstreamAdapter(HTTPAdapter):
    """To be mounted in a session: ``session.mount("https://…", upstream.adapter())``.

    A request that the method alone does not allow to be sent again is, where ``repeat`` says so.
    """

    def __init__(self, upstream: Upstream, *, repeat: bool = False) -> None:
        super().__init__()
        self._upstream = upstream
        self._repeat = repeat

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Send a request as soon as it may be sent; the report of its call is ``response.comporta``."""
        allowed = self._repeat or str(request.method).upper() in IDEMPOTENT_METHODS
        kept = request.body is None or isinstance(request.body, bytes | str)
        call = self._upstream.prepared(
            super().send, (request, *arguments), options, repeatable=allowed and kept
        )
        response: Response = call.made()
        response.comporta = call.report  # type: ignore[attr-defined]  # for whoever wants to know
        return response
