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
