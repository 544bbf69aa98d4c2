"""Generator functions that call an upstream: one attempt lasts until the generator ends.

The first item is produced inside the call, so that a generator that fails before it can be retried. After
that the caller has received something, and an error is final. Permit, time-out and outcome cover the whole
generator, as they cover the body of a response (``body.py``). The time that the caller spends between two
items does not count towards the time-out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial, wraps
from typing import Any, Generic, TypeVar

from comporta.upstream.body import OpenBody, ReadTimer
from comporta.upstream.call_state import CallTraits
from comporta.upstream.flows import UpstreamCall
from comporta.upstream.options import CallOptions

G = TypeVar("G")

Prepare = Callable[..., UpstreamCall]
"""``Upstream._prepare``: makes a call from a function, its arguments and its keywords."""


class NoAnswer:
    """The answer type of generators: ``on_refusal`` and ``retry_if`` are for calls with a single result."""


class StartedGenerator(Generic[G]):
    """A generator that has produced its first item, or has ended without one."""

    __slots__ = ("first", "generator", "has_ended", "timer", "value")

    def __init__(self, generator: G, timer: ReadTimer) -> None:
        self.generator = generator
        self.timer = timer
        self.first: Any = None
        self.has_ended = False
        self.value: Any = None

    def end(self, value: Any = None) -> None:
        """Record that there are no items; ``value`` is what the generator returned."""
        self.has_ended, self.value = True, value


def _has_items(started: StartedGenerator[Any]) -> bool:
    return not started.has_ended


_TRAITS = CallTraits(has_open_body=_has_items, answer_type=NoAnswer)


def guard_generator(
    prepare: Prepare, function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function that calls ``function`` through the policies."""

    def start(*args: Any, **kwargs: Any) -> StartedGenerator[Generator[Any, Any, Any]]:
        started = StartedGenerator(function(*args, **kwargs), ReadTimer(None))  # nothing can interrupt it
        try:
            started.first = next(started.generator)
        except StopIteration as end:
            started.end(end.value)
        return started

    @wraps(function)
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        call = prepare(start, args, kwargs, _TRAITS)
        started = call.execute()
        if started.has_ended:
            return started.value
        return (yield from _rest(started, OpenBody(call, started.timer)))

    return generate


def _rest(started: StartedGenerator[Generator[Any, Any, Any]], body: OpenBody) -> Generator[Any, Any, Any]:
    """Yield the first item and all that follow; pass on what the caller sends and throws."""
    generator, item = started.generator, started.first
    while True:
        try:
            sent = yield item
        except GeneratorExit:
            _close(generator, body)
            raise
        except BaseException as error:
            step = partial(generator.throw, error)
        else:
            step = partial(generator.send, sent)
        try:
            item = body.read(step)
        except StopIteration as end:
            return end.value


def _close(generator: Generator[Any, Any, Any], body: OpenBody) -> None:
    """Close a generator that its caller closed between two items; an error in its cleanup is the outcome."""
    try:
        generator.close()
    except BaseException as error:
        body.drop(error)
        raise
    body.drop()


async def _close_async(generator: AsyncGenerator[Any, Any], body: OpenBody) -> None:
    """Close an async generator that its caller closed between two items."""
    try:
        await generator.aclose()
    except BaseException as error:
        body.drop(error)
        raise
    body.drop()


def guard_async_generator(
    prepare: Prepare, function: Callable[..., AsyncGenerator[Any, Any]], options: CallOptions
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an async generator function that calls ``function`` through the policies."""

    async def start(*args: Any, **kwargs: Any) -> StartedGenerator[AsyncGenerator[Any, Any]]:
        started = StartedGenerator(function(*args, **kwargs), ReadTimer(options.timeout))
        try:
            started.first = await anext(started.generator)
        except StopAsyncIteration:
            started.end()
        return started

    @wraps(function)
    async def generate(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        call = prepare(start, args, kwargs, _TRAITS)
        started = await call.execute_async()
        if started.has_ended:
            return
        generator, item = started.generator, started.first
        body = OpenBody(call, started.timer)
        while True:
            try:
                sent = yield item
            except GeneratorExit:
                await _close_async(generator, body)
                raise
            except BaseException as error:
                step = partial(generator.athrow, error)
            else:
                step = partial(generator.asend, sent)
            try:
                item = await body.read_async(step)
            except StopAsyncIteration:
                return

    return generate
