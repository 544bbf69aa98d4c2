"""The step of ``comporta run``: makes one call for an item and turns the answer into a row.

The upstream limits and retries the call. The step itself waits while the breaker is open, the limit is
exhausted, or the server answers 429 or 503: those say nothing about the item. Any other answer that is not a
success turns the item into a dead letter.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from math import isfinite
from typing import Any

from comporta.cli.run_url_template import UrlTemplate, fields_of
from comporta.errors import ComportaError, RefusedError
from comporta.headers import requested_pause
from comporta.jitter import uniform
from comporta.outcome import retry_after_of
from comporta.pipeline.strict_json import dump_json
from comporta.retry import IDEMPOTENT_METHODS
from comporta.upstream.report import last_call

COLUMNS = ("input", "url", "status", "body", "attempts", "seconds")
"""The columns of a row, besides the number of its line."""

_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 60.0
_SHOWN_CHARS = 200


class HttpStatusError(ComportaError):
    """The answer is not a success; ``retry_after`` is the wait that it asks for, in seconds."""

    def __init__(self, status: int, text: str, retry_after: float = 0.0) -> None:
        super().__init__(status, text, retry_after)
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.status} {self.args[1]}".strip()


class HttpStep:
    """Calls the URL of each item, with a client that uses an upstream and a ``BufferedTransport``."""

    def __init__(
        self,
        client: Any,
        url_template: UrlTemplate,
        *,
        method: str,
        send_item: bool,
        accepted: frozenset[int],
        patience: float,
        parse_json: bool,
    ) -> None:
        self._client = client
        self._url_template = url_template
        self._method = method
        self._send_item = send_item
        self._accepted = accepted
        self._patience = patience
        self._parse_json = parse_json
        self.retries = 0

    async def __call__(self, item: Any) -> Mapping[str, Any]:
        """Make the call as soon as it is allowed, and return the row."""
        url = self._url_template.render(item)
        began = time.monotonic()
        while True:
            try:
                response = await self._call(url, item)
            except (RefusedError, HttpStatusError) as error:
                if not self._is_worth_waiting(error):
                    raise
                await self._wait_before_retry(error, began)
            else:
                return self._row(item, url, response, time.monotonic() - began)

    async def _call(self, url: str, item: Any) -> Any:
        before = last_call()
        body = {"json": dict(fields_of(item))} if self._send_item else {}
        try:
            response = await self._client.request(self._method, url, **body)
        finally:
            report = last_call()
            if report is not None and report is not before:  # the same: the upstream made no attempt
                self.retries += max(0, report.attempts - 1)
        if not (response.is_success or response.status_code in self._accepted):
            text = response.content.decode("utf-8", "replace")[:_SHOWN_CHARS]
            pause = requested_pause(response.headers, time.time())
            raise HttpStatusError(response.status_code, text, pause or 0.0)
        return response

    def _is_worth_waiting(self, error: ComportaError) -> bool:
        """Whether the call had no effect and may succeed later. A POST that got a 503 may have had one."""
        status = getattr(error, "status", None)
        return status in (None, 429) or (status == 503 and self._method in IDEMPOTENT_METHODS)

    async def _wait_before_retry(self, error: ComportaError, began: float) -> None:
        """Wait as long as the error asks for; raise it once ``patience`` is exhausted."""
        left = self._patience - (time.monotonic() - began)
        if left <= 0:
            raise error
        wait = min(max(retry_after_of(error), _WAIT_SECONDS_MIN), _WAIT_SECONDS_MAX)
        await asyncio.sleep(min(wait, left) * uniform(1.0, 1.25))

    def _row(self, item: Any, url: str, response: Any, seconds: float) -> Mapping[str, Any]:
        text = response.content.decode(response.encoding or "utf-8", "replace")
        return {
            "input": item if self._parse_json else dump_json(item, ensure_ascii=False),
            "url": url,
            "status": response.status_code,
            "body": _json_or_text(text) if self._parse_json else text,
            "attempts": response.extensions["comporta"].attempts,
            "seconds": round(seconds, 3),
        }


def _json_or_text(text: str) -> Any:
    """Return the parsed JSON, or the text if it is not JSON, so that JSON lines hold no JSON in strings.

    JSON with numbers that a float cannot hold (``NaN``, ``1e999``) stays text, so that nothing is lost.
    """
    try:
        return json.loads(text, parse_constant=_finite_float, parse_float=_finite_float)
    except (ValueError, RecursionError):
        return text


def _finite_float(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text:.50} must be a finite number")
    return number
