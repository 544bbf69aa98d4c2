"""Blocks of code that a circuit guards: ``with breaker.sync.admit()`` and ``async with breaker.admit()``.

Each block owns its admission. Blocks in generators and tasks may end in any order, so neither a stack nor a
context variable could identify the admission of the block that is ending.
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
        assert admission is not None  # noqa: S101 - a block that was never entered cannot end
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
        assert admission is not None  # noqa: S101 - a block that was never entered cannot end
        if error is not None or not guard.succeed_fast(admission):
            await guard.finish_async(admission, error)


class _SyncGeneratorBlock(SyncBlock):
    """The block of a generator; counts as a success if the caller closes or drops it between two items."""

    __slots__ = ()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            run_cleanup(super().__exit__, None, None, None)
        else:
            super().__exit__(kind, error, trace)


class _AsyncGeneratorBlock(AsyncBlock):
    """The block of an async generator, which ends even if the generator never does.

    If its event loop is closed, the garbage collector drops an async generator without running the rest of
    it. ``is_between_items`` is true while the caller has an item and has not requested the next one. A
    generator that the caller closes or drops then counts as a success; one that is dropped while it produces
    an item has no result.
    """

    __slots__ = ("_ended", "is_between_items")

    def __init__(self, guard: CallGuard) -> None:
        super().__init__(guard)
        self._ended = self.is_between_items = False

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        if isinstance(error, GeneratorExit) and self.is_between_items:
            run_cleanup(self._guard.finish, self._admission, None)
        else:
            await super().__aexit__(kind, error, trace)

    def __del__(self) -> None:
        if self._admission is not None and not self._ended:
            error = None if self.is_between_items else GeneratorExit()
            run_elsewhere(self._guard.finish, self._admission, error)


def decorate_generator(
    guard: CallGuard, function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    """Return a generator function whose admission lasts from the first item until the generator ends."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with _SyncGeneratorBlock(guard):
            return (yield from function(*args, **kwargs))

    return call


def decorate_async_generator(
    guard: CallGuard, function: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return an async generator function whose admission lasts from the first item until it ends."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        block = _AsyncGeneratorBlock(guard)
        async with block:
            inner = function(*args, **kwargs)
            try:
                item = await anext(inner)
                while True:
                    block.is_between_items = True
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await inner.aclose()
                        raise
                    except BaseException as error:  # the caller throws it into the generator
                        block.is_between_items = False
                        item = await inner.athrow(error)
                    else:
                        block.is_between_items = False
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                return

    return call
