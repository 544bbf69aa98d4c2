"""The step of ``comporta run``: makes one call for an item and turns the answer into a row.

The upstream limits and retries the call. The step itself waits while the breaker is open, the limit is
exhausted, or the server answers 429 or 503: those say nothing about the item. An upstream gives up early if
the failure of a call opens the circuit; the step then waits for the circuit and makes the remaining retries.
Any other answer that is not a success turns the item into a dead letter.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

from comporta.cli.run_url_template import UrlTemplate, fields_of
from comporta.errors import CircuitOpenError, ComportaError, RefusedError
from comporta.headers import requested_pause
from comporta.jitter import uniform
from comporta.outcome import RETRYABLE_STATUSES, classify, retry_after_of
from comporta.pipeline.run.executor import STEP_ATTEMPTS
from comporta.pipeline.strict_json import dump_json
from comporta.retry import IDEMPOTENT_METHODS
from comporta.upstream.report import CallReport, last_call
from comporta.upstream.upstream import Upstream

COLUMNS = ("input", "url", "status", "body", "attempts", "seconds")
"""The columns of a row, besides the number of its line."""

_WAIT_SECONDS_MIN = 0.1
_WAIT_SECONDS_MAX = 60.0
_CIRCUIT_SECONDS_MAX = 2.0
"""The longest time between two checks of the circuit: a probe may close it long before its cooldown ends."""

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
        upstream: Upstream,
        url_template: UrlTemplate,
        *,
        method: str,
        send_item: bool,
        accepted: frozenset[int],
        patience: float,
        parse_json: bool,
        has_idempotency_key: bool = False,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._url_template = url_template
        self._method = method
        self._send_item = send_item
        self._accepted = accepted
        self._patience = patience
        self._parse_json = parse_json
        self._may_repeat = has_idempotency_key or method in IDEMPOTENT_METHODS
        self.retries = 0
        self.items_begun = 0

    async def __call__(self, item: Any) -> Mapping[str, Any]:
        """Make the call as soon as it is allowed, and return the row."""
        return await self.call(item, {})

    async def call(self, item: Any, headers: Mapping[str, str]) -> Mapping[str, Any]:
        """Do the same with additional headers."""
        url = self._url_template.render(item)
        began = time.monotonic()
        attempts = 0
        self.items_begun += 1
        try:
            while True:
                before = last_call()
                try:
                    response = await self._call(url, item, headers)
                except Exception as error:
                    attempts += _attempts_since(before)
                    if self._is_worth_waiting(error):
                        await self._wait_before_retry(error, began)
                    elif not self._has_retries_left(error, attempts):
                        raise
                else:
                    attempts += _attempts_since(before)
                    return self._row(item, url, response, attempts, time.monotonic() - began)
        except Exception as error:
            with suppress(AttributeError):  # an error with slots
                setattr(error, STEP_ATTEMPTS, attempts)
            raise
        finally:
            self.items_begun -= 1
            self.retries += max(0, attempts - 1)

    async def _call(self, url: str, item: Any, headers: Mapping[str, str]) -> Any:
        body = {"json": dict(fields_of(item))} if self._send_item else {}
        response = await self._client.request(self._method, url, headers=headers, **body)
        if not (response.is_success or response.status_code in self._accepted):
            text = response.content.decode("utf-8", "replace")[:_SHOWN_CHARS]
            pause = requested_pause(response.headers, time.time())
            raise HttpStatusError(response.status_code, text, pause or 0.0)
        return response

    def _is_worth_waiting(self, error: Exception) -> bool:
        """Whether the call had no effect and may succeed later. A POST that got a 503 may have had one."""
        if not isinstance(error, HttpStatusError):
            return isinstance(error, RefusedError)
        return error.status == 429 or (error.status == 503 and self._may_repeat)

    def _has_retries_left(self, error: Exception, attempts: int) -> bool:
        """Whether the upstream gave up before it made all retries, because the circuit is open.

        The next call does not reach the server before the circuit admits it.
        """
        retry, breaker = self._upstream.retry, self._upstream.breaker
        if retry is None or breaker is None or not self._may_repeat:
            return False
        if not 0 < attempts <= retry.backoff.retries or not _may_succeed_later(error):
            return False
        return retry.budget is None or breaker.is_degraded

    async def _wait_before_retry(self, error: Exception, began: float) -> None:
        """Wait as long as the error asks for; raise it once ``patience`` is exhausted."""
        left = self._patience - (time.monotonic() - began)
        if left <= 0:
            raise error
        longest = _CIRCUIT_SECONDS_MAX if isinstance(error, CircuitOpenError) else _WAIT_SECONDS_MAX
        wait = min(max(retry_after_of(error), _WAIT_SECONDS_MIN), longest)
        await asyncio.sleep(min(wait, left) * uniform(1.0, 1.25))

    def _row(self, item: Any, url: str, response: Any, attempts: int, seconds: float) -> Mapping[str, Any]:
        text = response.content.decode(response.encoding or "utf-8", "replace")
        return {
            "input": item if self._parse_json else dump_json(item, ensure_ascii=False),
            "url": url,
            "status": response.status_code,
            "body": _json_or_text(text) if self._parse_json else text,
            "attempts": attempts,
            "seconds": round(seconds, 3),
        }


def _attempts_since(before: CallReport | None) -> int:
    """Return how many attempts the upstream has made for the latest call; 0 if it did not get that far."""
    report = last_call()
    return 0 if report is None or report is before else report.attempts


def _may_succeed_later(error: Exception) -> bool:
    if isinstance(error, HttpStatusError):
        return error.status in RETRYABLE_STATUSES
    return classify(None, error).repeat


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
