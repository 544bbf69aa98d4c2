"""An HTTP upstream for tests: it enforces its own rate limit, and can be slow or broken on command.

It runs in a thread of this process and speaks HTTP/1.1 on loopback, so that you can test any client and any
number of processes against it.
"""

from __future__ import annotations

import asyncio
import math

from comporta.testing.http_server import (
    HttpRequest,
    HttpServer,
    RequestQuota,
    json_response,
    retry_after_header,
)


class SimulatedUpstream(HttpServer):
    """An HTTP server that accepts ``rate`` requests a second, ``burst`` at once, and refuses others with 429.

    ::

        with SimulatedUpstream(rate=10, burst=10) as upstream:
            httpx2.get(upstream.url)
            upstream.status = 503

    Without ``rate`` there is no limit. Set ``status``, ``headers`` and ``delay`` (seconds; ``None``: never
    respond) to control the responses from then on, and ``next_statuses`` to control the next ones only.
    ``retry_after`` controls whether responses with 429 and 503 carry ``Retry-After``. The server counts
    requests in ``accepted`` and ``refused``; ``in_flight`` is the number of requests in progress and
    ``max_in_flight`` its maximum so far.
    """

    def __init__(self, rate: float | None = None, burst: int = 10, *, retry_after: bool = True) -> None:
        super().__init__()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.next_statuses: list[int] = []
        self.delay: float | None = 0.0
        self.retry_after = retry_after
        self.accepted = self.refused = self.max_in_flight = self.in_flight = 0
        self._quota = RequestQuota(rate, burst)

    async def _respond(self, request: HttpRequest) -> bytes:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            wait = self._quota.take()
            self.accepted += not wait
            self.refused += bool(wait)
            if self.delay != 0:
                await asyncio.sleep(math.inf if self.delay is None else self.delay)
        finally:
            self.in_flight -= 1
        if wait > 0:
            return self._response(429, wait)
        status = self.next_statuses.pop(0) if self.next_statuses else self.status
        return self._response(status, 1 if status == 503 else None)

    def _response(self, status: int, retry_after: float | None) -> bytes:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if retry_after is not None and self.retry_after:
            headers.setdefault("retry-after", retry_after_header(retry_after))
        return json_response(status, {"status": status}, headers)
