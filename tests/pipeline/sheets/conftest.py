"""A stand-in for Google, an account on it and sinks that write there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from comporta import Retry
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
from comporta.testing import ManualClock, SheetsServer

MakesSink = Callable[..., SheetsSink]


@pytest.fixture
def server(google: SheetsServer) -> SheetsServer:
    return google


@contextmanager
def hurried(account: GoogleAccount) -> Iterator[None]:
    """Have an account wait for a moment only."""
    patient = account.timeout
    account.close()
    account.timeout = 0.3
    try:
        yield
    finally:
        account.close()
        account.timeout = patient


@pytest.fixture
def spreadsheet(server: SheetsServer) -> str:
    return server.create()


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/addresses.db?timeout=30"


@pytest.fixture
def make(account: GoogleAccount, spreadsheet: str, database: str) -> Iterator[MakesSink]:
    """Make sinks for one spreadsheet, open and with one database, closed at the end."""
    with ExitStack() as ends:

        def made(**options: Any) -> SheetsSink:
            sink = SheetsSink(spreadsheet, account, database=database, **options)
            ends.callback(sink.close)
            sink.open()
            return sink

        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def retry(clock: ManualClock) -> Retry:
    """Try again without waiting for it."""
    return Retry(jitter=(0, 0), clock=clock, budget=None)
