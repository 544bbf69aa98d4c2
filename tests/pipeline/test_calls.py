"""What blocks is called on a thread while an event loop goes on."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from comporta.pipeline.calls import Call


def test_call__raises_what_no_future_takes__is_an_error_and_no_wait_for_ever() -> None:
    def exhausted() -> NoReturn:
        raise StopIteration(7)

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(Call(exhausted).wait(), 30))


def test_call__raises_something_else__is_its_error() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(Call(lambda: 1 // 0).wait())


def test_call__no_thread_can_be_had__is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.calls.Run.start", lambda *_, **__: False)
    with pytest.raises(RuntimeError, match="no thread can be had for a call that blocks"):
        asyncio.run(Call(lambda: 7).wait())
