"""Ctrl-C during a run: what a program heard before, it hears again."""

from __future__ import annotations

import asyncio
import signal

import pytest

from comporta.pipeline.runs.interrupts import Interrupts


def test_interrupts__a_handler_that_is_not_pythons__is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        interrupts = Interrupts(print, print, wanted=True)
        with monkeypatch.context() as patches:
            patches.setattr(signal, "getsignal", lambda _: None)
            interrupts.__enter__()
        interrupts.__exit__(None, None, None)

    asyncio.run(main())
    signal.signal(signal.SIGTERM, before)
