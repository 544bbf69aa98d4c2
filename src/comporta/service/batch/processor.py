"""Processes the accounts of a job with a user's function, async or blocking, or by calling an upstream.

An exception becomes the result of its account. A refusal (open circuit, limit reached) says nothing about the
account, so the processor waits and tries again a bounded number of times.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from typing import Any, Final, Protocol

from comporta.errors import RefusedError
from comporta.flow import is_task_cancelled
from comporta.pipeline.sinks.formula_escaping import clean_text
from comporta.service.batch.models import FAILED, MESSAGE_CHARS_MAX, SUCCESS, AccountResult, PendingAccount
from comporta.service.sources.portal import Portal
from comporta.signatures import is_async_callable
from comporta.thread_pool import ThreadPool

REFUSAL_RETRIES_MAX: Final = 10
"""How often a refusal is retried before it becomes the account's result."""

REFUSAL_SECONDS_MAX: Final = 30.0
CLOSE_SECONDS: Final = 1.0

_CONTROL_CHARS = dict.fromkeys((*range(32), 127), " ") | {ord("\n"): "\n"}


class Processor(Protocol):
    """An async function of an account that returns the message for its row."""

    async def __call__(self, account: str) -> str:
        """Process the account."""


class BlockingProcessor(Protocol):
    """The blocking form, which runs on a thread pool of its own."""

    def __call__(self, account: str) -> str:
        """Process the account."""


class AccountProcessor:
    """Calls a processor and turns what it returns or raises into the account's result."""

    def __init__(self, processor: Processor | BlockingProcessor, pool: ThreadPool) -> None:
        self._processor: Callable[[str], Any] = processor
        self._is_async = is_async_callable(processor)
        self._pool = pool

    async def process(self, account: PendingAccount) -> AccountResult:
        """Return the result of an account."""
        for _ in range(REFUSAL_RETRIES_MAX):
            try:
                return _account_result(account, SUCCESS, await self._call(account.account))
            except RefusedError as refused:
                reason: Exception = refused
                await asyncio.sleep(min(max(refused.retry_after, 0.01), REFUSAL_SECONDS_MAX))
            except Exception as error:
                reason = error
                break
            except asyncio.CancelledError as error:
                if is_task_cancelled():  # the job itself, not something that the processor awaits
                    raise
                reason = RuntimeError(f"something in the processor was cancelled: {error!r}")
                break
        return _account_result(account, FAILED, _error_text(reason))

    async def aclose(self) -> None:
        """Close the processor if it has ``aclose``; an error or a timeout does not stop the shutdown."""
        close = getattr(self._processor, "aclose", None)
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                if close is not None:
                    await close()

    async def _call(self, account: str) -> Any:
        if self._is_async:
            return await self._processor(account)
        # the thread inherits the priority class and the owner of the job
        return await self._pool.run(copy_context().run, _call_blocking, self._processor, account)


class UpstreamProcessor:
    """Processes an account with ``GET <address>?account=…``.

    The message is the member ``message`` of the JSON response, or else the whole response text.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    async def __call__(self, account: str) -> str:
        """Call the upstream."""
        return await self._portal.get("", {"account": account}, _parse_message) or ""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()


def load_processor(name: str) -> Processor | BlockingProcessor:
    """Import the function ``package.module:name``; a class is instantiated without arguments."""
    module, sign, attribute = name.partition(":")
    if not (module and sign and attribute):
        raise ValueError(f"processor must have the form 'package.module:name', got {name!r:.100}")
    try:
        imported = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"processor must be importable, got {name!r:.100}: {error}") from error
    processor: Any = imported() if isinstance(imported, type) else imported
    if not callable(processor):
        raise TypeError(f"processor must be a function of an account, got {processor!r:.100}")
    return processor  # type: ignore[no-any-return] # its result is checked when it returns one


def clean_message(text: str) -> str:
    """Return a message that databases and cells accept: bounded, without control characters."""
    return clean_text(text[:MESSAGE_CHARS_MAX]).translate(_CONTROL_CHARS).strip()


def _call_blocking(processor: Callable[[str], Any], account: str) -> Any:
    """Call it on a thread. A future cannot carry ``StopIteration``: the caller would wait forever."""
    try:
        return processor(account)
    except StopIteration as error:
        raise RuntimeError("the processor raised StopIteration") from error


def _error_text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a user's error whose __str__ fails
        return type(error).__name__


def _account_result(account: PendingAccount, outcome: str, message: Any) -> AccountResult:
    return AccountResult(
        account.position,
        account.account,
        outcome,
        clean_message(message if type(message) is str else str(message)),
    )


def _parse_message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(document, dict) and isinstance(document.get("message"), str):
        return str(document["message"])
    return text
