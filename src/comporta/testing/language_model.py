"""A simulated provider of a language model: its answers cost tokens, and it limits requests and tokens.

It runs in a thread of this process, like the other simulated services. How many tokens an answer costs is
known only afterwards.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

from comporta.testing.http_server import (
    HttpRequest,
    HttpServer,
    RequestQuota,
    json_response,
    retry_after_header,
)

_SPREAD = 0.8
_MINUTE = 60.0


class SimulatedLanguageModel(HttpServer):
    """An HTTP server that answers a POST of ``{"prompt": …, "max_tokens": …}`` with text and its usage.

    ::

        with SimulatedLanguageModel(tokens_per_minute=100_000) as model:
            answer = httpx2.post(model.url, json={"prompt": "Hello", "max_tokens": 500}).json()
            print(answer["usage"]["total_tokens"])

    The cost of an answer is log-normal around ``mean_tokens`` and at most the request's ``max_tokens``; with
    the same ``seed`` it is the same every time. A request above one of the limits gets a 429 with
    ``Retry-After``, and every response has the headers ``x-ratelimit-limit-tokens`` and
    ``x-ratelimit-remaining-tokens``. The server counts requests in ``accepted`` and ``refused``, and what the
    accepted ones cost in ``tokens_used``.
    """

    def __init__(
        self,
        requests_per_second: float = 10,
        tokens_per_minute: int = 100_000,
        *,
        mean_tokens: int = 800,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.accepted = self.refused = self.tokens_used = 0
        self._tokens_per_minute = tokens_per_minute
        self._requests = RequestQuota(requests_per_second, max(1.0, requests_per_second))
        self._tokens = RequestQuota(tokens_per_minute / _MINUTE, tokens_per_minute)
        self._log_median = math.log(mean_tokens) - _SPREAD**2 / 2
        self._random = Random(seed)

    async def _respond(self, request: HttpRequest) -> bytes:
        asked: dict[str, Any] = json.loads(request.body or b"{}")
        used = max(1, round(self._random.lognormvariate(self._log_median, _SPREAD)))
        used = min(used, int(asked.get("max_tokens", used)))
        wait = self._requests.take() or self._tokens.take(used)
        headers = {
            "x-ratelimit-limit-tokens": str(self._tokens_per_minute),
            "x-ratelimit-remaining-tokens": str(max(0, int(self._tokens.available))),
        }
        if wait:
            self.refused += 1
            headers["retry-after"] = retry_after_header(wait)
            return json_response(429, {"error": {"type": "rate_limit_exceeded"}}, headers)
        self.accepted += 1
        self.tokens_used += used
        return json_response(200, {"text": "…", "usage": {"total_tokens": used}}, headers)
