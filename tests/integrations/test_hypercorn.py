"""Workers of hypercorn share limits exactly, and return what they hold when they end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
from tests.integrations.gunicorn_server import ROOT
from tests.integrations.test_gunicorn import (
    ADMITTED,
    LEASED,
    PERMITS,
    get_all,
    leased_units_left,
    wait_for_workers,
)
from tests.support import WAIT_SECONDS_MAX, wait_until

from comporta import ConcurrencyLimit

APP = "tests.integrations.hypercorn_app:application"


@contextmanager
def hypercorn(state: str, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Serve the application with two workers; yield the main process and the URL."""
    log = folder / "log"
    environ = {"COMPORTA_TEST_STATE": state, "COMPORTA_TEST_GATE": str(folder / "gate")}
    command = [sys.executable, "-m", "hypercorn", "--workers", "2", "--bind", "127.0.0.1:0", APP]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environ}, stderr=output, start_new_session=True
        ) as process,
    ):

        def url() -> str | None:
            found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
            return None if found is None else found[0]

        try:
            wait_until(lambda: url() is not None or process.poll() is not None)
            yield process, url() or log.read_text()
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def test_workers__one_shared_limit__admit_exactly_it_and_return_what_they_hold(
    shared_state: str, tmp_path: Path
) -> None:
    permits = ConcurrencyLimit("permits", PERMITS, state=shared_state)
    with (
        hypercorn(shared_state, tmp_path) as (process, url),
        httpx2.Client(
            base_url=url,
            headers={"Connection": "close"},
            trust_env=False,
            verify=False,
            timeout=WAIT_SECONDS_MAX,
        ) as client,
        ThreadPoolExecutor(PERMITS) as pool,
    ):
        wait_for_workers(client)
        responses = get_all(client, "/", 2 * ADMITTED)
        others = get_all(client, "/lease", 6)
        held = [pool.submit(client.get, "/hold") for _ in range(PERMITS)]
        wait_until(lambda: permits.sync.in_use() == PERMITS)
        process.terminate()
        (tmp_path / "gate").touch()
        others += [future.result() for future in held]
        assert process.wait(WAIT_SECONDS_MAX) == 0
    assert Counter(each.status_code for each in responses) == {200: ADMITTED, 429: ADMITTED}
    assert len({each.text for each in responses if each.status_code == 200}) > 1, "one worker served all"
    assert {each.status_code for each in others} == {200}
    assert permits.sync.in_use() == 0
    assert leased_units_left(shared_state) == LEASED - 6
