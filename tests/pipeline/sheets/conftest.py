"""A fake Google service, an account on it, and sinks that write to it."""

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
def short_timeout(account: GoogleAccount) -> Iterator[None]:
    """Give an account a very short timeout."""
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
    """Open sinks for one spreadsheet with one database; close them at the end."""
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
    """Return a retry policy that does not wait."""
    return Retry(jitter=(0, 0), clock=clock, budget=None)
