"""Blocks of code that a circuit guards: ``with breaker.sync.admit()`` and ``async with breaker.admit()``.

A block owns its admission. Blocks of generators and tasks end in any order, so that neither a stack nor a
context variable could say which admission belongs to the block that ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Any

from comporta.breaker.admission import Admission
from comporta.breaker.guard import CallGuard
from comporta.flow import run, run_async
from comporta.threads import run_cleanup, run_elsewhere


class _Block:
    """A block that can be entered once; ``_admission`` is ``None`` before that."""

    __slots__ = ("_admission", "_guard")

    def __init__(self, guard: CallGuard) -> None:
        self._guard = guard
        self._admission: Admission | None = None

    def _reuse_error(self) -> RuntimeError:
        name = self._guard.name
        return RuntimeError(f"a block of breaker {name!r} can be entered once: call admit() for each block")


class SyncBlock(_Block):
    """One guarded block of blocking code: ``with breaker.sync.admit() as admission:``."""

    __slots__ = ()

    def __enter__(self) -> Admission:
        guard = self._guard
        if self._admission is not None:
            raise self._reuse_error()
        admission = guard.shared_admission()
        if admission is None:
            admission = guard.require(run(guard.flows.admit_flow()))
        self._admission = admission
        return admission

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, admission = self._guard, self._admission
        assert admission is not None  # noqa: S101 - a block that was not entered does not end
        if error is not None:
            run_cleanup(guard.finish, admission, error)
        elif not guard.succeed_fast(admission):
            guard.finish(admission, None)


class AsyncBlock(_Block):
    """One guarded block of async code: ``async with breaker.admit() as admission:``."""

    __slots__ = ()

    async def __aenter__(self) -> Admission:
        guard = self._guard
        if self._admission is not None:
            raise self._reuse_error()
        admission = guard.shared_admission()
        if admission is None:
            admission = guard.require(await run_async(guard.flows.admit_flow()))
        self._admission = admission
        return admission

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, admission = self._guard, self._admission
        assert admission is not None  # noqa: S101 - a block that was not entered does not end
        if error is not None or not guard.succeed_fast(admission):
            await guard.finish_async(admission, error)


class _GeneratorBlock(AsyncBlock):
    """The block of an async generator, which also ends if the generator never does.

    The garbage collector drops an async generator without running the rest of it if its event loop is closed.
    """

    __slots__ = ("_ended",)

    def __init__(self, guard: CallGuard) -> None:
        super().__init__(guard)
        self._ended = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        await super().__aexit__(kind, error, trace)

    def __del__(self) -> None:
        if self._admission is not None and not self._ended:
            run_elsewhere(self._guard.finish, self._admission, GeneratorExit())


def decorate_generator(
    guard: CallGuard, function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function whose admission lasts from the first item until the generator ends."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with SyncBlock(guard):
            return (yield from function(*args, **kwargs))

    return call


def decorate_async_generator(
    guard: CallGuard, function: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an async generator function whose admission lasts from the first item until it ends."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with _GeneratorBlock(guard):
            inner = function(*args, **kwargs)
            try:
                item = await anext(inner)
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # the caller throws it into the generator
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return

    return call
