"""An upstream as strangers run them: it enforces a limit of its own, and can be slow or broken.

It runs in a thread of this process and speaks HTTP/1.1 on loopback, so that whole programs can be tried
against it: any client, any number of processes.
"""

from __future__ import annotations

import asyncio
import math

from comporta.testing.listening import Allowance, Listening, Request, response, told_after


class SimulatedUpstream(Listening):
    """A server that answers ``rate`` requests a second, ``burst`` at once, and refuses others with 429.

    ::

        with SimulatedUpstream(rate=10, burst=10) as upstream:
            httpx2.get(upstream.url)
            upstream.status = 503

    ``status``, ``headers`` and ``delay`` (seconds) are how it answers from now on; ``delay`` of ``None`` is
    never. ``upcoming`` are statuses for the next requests, before it goes back to ``status``.
    ``retry_after`` says when to come back in refusals and with a 503. ``accepted``, ``refused`` and ``most``
    (requests at the same time) are what it has seen. No ``rate``: no limit.
    """

    def __init__(self, rate: float | None = None, burst: int = 10, *, retry_after: bool = True) -> None:
        super().__init__()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.upcoming: list[int] = []
        self.delay: float | None = 0.0
        self.retry_after = retry_after
        self.accepted = self.refused = self.most = self.present = 0
        self._allowance = Allowance(rate, burst)

    async def answered(self, request: Request) -> bytes:
        """Return an answer, whatever was asked."""
        self.present += 1
        self.most = max(self.most, self.present)
        try:
            wait = self._allowance.take()
            self.accepted += not wait
            self.refused += bool(wait)
            if self.delay != 0:
                await asyncio.sleep(math.inf if self.delay is None else self.delay)
        finally:
            self.present -= 1
        if wait > 0:
            return self._response(429, wait)
        status = self.upcoming.pop(0) if self.upcoming else self.status
        return self._response(status, 1 if status == 503 else None)

    def _response(self, status: int, retry_after: float | None) -> bytes:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if retry_after is not None and self.retry_after:
            headers.setdefault("retry-after", told_after(retry_after))
        return response(status, {"status": status}, headers)
