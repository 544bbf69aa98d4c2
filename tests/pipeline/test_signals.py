"""Signal handlers during a run, and those of the program that they replace."""

from __future__ import annotations

import asyncio
import signal

import pytest

from comporta.pipeline.run.signals import SignalHandlers


def test_signals__handler_not_set_from_python__is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def main() -> None:
        handlers = SignalHandlers(print, print, enabled=True)
        with monkeypatch.context() as patches:
            patches.setattr(signal, "getsignal", lambda _: None)
            handlers.__enter__()
        handlers.__exit__(None, None, None)

    asyncio.run(main())
    signal.signal(signal.SIGTERM, before)
