"""What is done for each account of a job: a function of the user's, awaited or blocking, or a call upstream.

Whatever it raises is what became of the account. Only a refusal is not: an open circuit or a full limit says
nothing of the account, so it is waited out for a while.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, Protocol

from comporta.callables import is_awaited
from comporta.errors import RefusedError
from comporta.pipeline.cells import clean
from comporta.service.batch.roles import Role
from comporta.service.batch.values import FAILED, MESSAGE_CHARS_MAX, SUCCESS, Account, Done
from comporta.service.sources.fetching import Portal

REFUSALS_MAX: Final = 10
"""How often a refusal is waited out before it is the account's result."""

REFUSAL_SECONDS_MAX: Final = 30.0
CLOSE_SECONDS: Final = 1.0

_SPACES = dict.fromkeys((*range(32), 127), " ") | {ord("\n"): "\n"}


class Processor(Protocol):
    """What is done for an account; returns the message for its row."""

    async def __call__(self, account: str) -> str:
        """Do it."""


class BlockingProcessor(Protocol):
    """The same, blocking: it is called on threads of its own."""

    def __call__(self, account: str) -> str:
        """Do it."""


class Processing:
    """A processor, as jobs use it."""

    def __init__(self, processor: Processor | BlockingProcessor, role: Role) -> None:
        self._processor: Callable[[str], Any] = processor
        self._awaited = is_awaited(processor)
        self._role = role

    async def done(self, account: Account) -> Done:
        """Return what became of an account."""
        for _ in range(REFUSALS_MAX):
            try:
                return _done(account, SUCCESS, await self._called(account.account))
            except RefusedError as refused:
                why: Exception = refused
                await asyncio.sleep(min(max(refused.retry_after, 0.01), REFUSAL_SECONDS_MAX))
            except Exception as error:
                why = error
                break
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                why = RuntimeError(f"something in the processor was cancelled: {error!r}")
                break
        return _done(account, FAILED, _told(why))

    async def aclose(self) -> None:
        """Close what the processor holds, if it says how; whatever comes of that, the service ends."""
        close = getattr(self._processor, "aclose", None)
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_SECONDS):
                if close is not None:
                    await close()

    async def _called(self, account: str) -> Any:
        if self._awaited:
            return await self._processor(account)
        return await self._role.run(_answered, self._processor, account)


class UpstreamProcessor:
    """Asks an upstream about an account: ``GET <address>?account=…``.

    The message is the member ``message`` of the JSON object that it answers with, or else the whole text.
    """

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    async def __call__(self, account: str) -> str:
        """Ask."""
        return await self._portal.get("", {"account": account}, _message) or ""

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()


def load_processor(name: str) -> Processor | BlockingProcessor:
    """Return the function that ``package.module:name`` means; a class is called once for one."""
    module, sign, attribute = name.partition(":")
    if not (module and sign and attribute):
        raise ValueError(f"processor must be such as 'package.module:name', got {name!r:.100}")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"processor must be something that can be imported, got {name!r:.100}: {error}"
        ) from error
    made: Any = found() if isinstance(found, type) else found
    if not callable(made):
        raise TypeError(f"processor must be a function of an account, got {made!r:.100}")
    return made  # type: ignore[no-any-return] # what it returns is looked at when it does


def cleaned(text: str) -> str:
    """Return a message that every database and every cell takes: no control characters, not too long."""
    return clean(text[:MESSAGE_CHARS_MAX]).translate(_SPACES).strip()


def _answered(processor: Callable[[str], Any], account: str) -> Any:
    """Call it on a thread; no future can hold a ``StopIteration``, and whoever waited would for ever."""
    try:
        return processor(account)
    except StopIteration as error:
        raise RuntimeError("the processor raised StopIteration") from error


def _is_cancelled() -> bool:
    """Whether it is the job that is told to stop, and not something that the processor waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _told(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # an error of the user's that cannot even say what it is
        return type(error).__name__


def _done(account: Account, outcome: str, message: Any) -> Done:
    return Done(
        account.position, account.account, outcome, cleaned(message if type(message) is str else str(message))
    )


def _message(body: bytes) -> str:
    text = body.decode("utf-8", "replace")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(told, dict) and isinstance(told.get("message"), str):
        return str(told["message"])
    return text
