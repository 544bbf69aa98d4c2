"""Workers of gunicorn share limits exactly, whatever their kind, and return what they hold when they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from tests.integrations.gunicorn_server import GunicornServer, gunicorn
from tests.support import WAIT_SECONDS_MAX, wait_until

from comporta import ConcurrencyLimit, LimitConfig, TokenBucketLimiter

ADMITTED, LEASED, PERMITS = 60, 1000, 3
"""The limits of ``gunicorn_app.py``."""

GTHREAD = ("--worker-class", "gthread", "--threads", "4")
GEVENT = ("--worker-class", "gevent")
PATCHED_FIRST = ("--config", "tests/integrations/gevent_conf.py")

SETUPS = {
    "gthread": GTHREAD,
    "gthread preload": (*GTHREAD, "--preload"),
    "gevent": GEVENT,
    "gevent preload": (*GEVENT, *PATCHED_FIRST, "--preload"),
}


@contextmanager
def serve_app(state: str, gate: Path, *options: str) -> Iterator[tuple[GunicornServer, httpx2.Client]]:
    """Serve the application with two workers, and yield a client that uses a connection for each request."""
    environ = {"COMPORTA_TEST_STATE": state, "COMPORTA_TEST_GATE": str(gate)}
    if "--preload" in options:
        environ["COMPORTA_TEST_USE"] = "1"  # fork after the limits were used
    with (
        gunicorn("tests.integrations.gunicorn_app", "--workers", "2", *options, environ=environ) as server,
        httpx2.Client(
            base_url=server.url,
            headers={"Connection": "close"},
            trust_env=False,
            verify=False,
            timeout=WAIT_SECONDS_MAX,
        ) as client,
    ):
        wait_for_workers(client)
        yield server, client


def wait_for_workers(client: httpx2.Client) -> None:
    """Wait until both workers have served a request."""
    pids: set[str] = set()

    def have_served() -> bool:
        pids.update(each.text for each in get_all(client, "/pid", 8))
        return len(pids) > 1

    wait_until(have_served)


def get_all(client: httpx2.Client, path: str, count: int) -> list[httpx2.Response]:
    """Send requests at the same time."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda _: client.get(path), range(count)))


def leased_units_left(state: str) -> int:
    """Return how many units of the leased limit no worker has used or holds."""
    return TokenBucketLimiter(LimitConfig(0.001, LEASED), state, "leased").sync.peek().remaining


@pytest.mark.unmeasured
@pytest.mark.parametrize("setup", SETUPS)
def test_workers__one_shared_limit__admit_exactly_it_and_return_what_they_hold(
    setup: str, shared_state: str, tmp_path: Path
) -> None:
    permits = ConcurrencyLimit("permits", PERMITS, state=shared_state)
    with (
        serve_app(shared_state, tmp_path / "gate", *SETUPS[setup]) as (server, client),
        ThreadPoolExecutor(PERMITS) as pool,
    ):
        responses = get_all(client, "/", 2 * ADMITTED)
        others = [*get_all(client, "/wait", 4), *get_all(client, "/lease", 6)]
        held = [pool.submit(client.get, "/hold") for _ in range(PERMITS)]
        wait_until(lambda: permits.sync.in_use() == PERMITS)
        server.process.terminate()
        (tmp_path / "gate").touch()
        others += [future.result() for future in held]
        assert server.process.wait(WAIT_SECONDS_MAX) == 0
    assert Counter(each.status_code for each in responses) == {200: ADMITTED, 429: ADMITTED}
    assert len({each.text for each in responses if each.status_code == 200}) > 1, "one worker served all"
    assert {each.status_code for each in others} == {200}
    assert permits.sync.in_use() == 0
    assert leased_units_left(shared_state) == LEASED - 6 - ("preload" in setup)


def test_workers__reloaded__keep_the_limit_and_return_leases(shared_state: str, tmp_path: Path) -> None:
    with serve_app(shared_state, tmp_path / "gate", *GTHREAD) as (server, client):
        before = [*get_all(client, "/", ADMITTED // 2), *get_all(client, "/lease", 3)]
        server.reload()
        wait_until(lambda: leased_units_left(shared_state) == LEASED - 3)
        after = get_all(client, "/", ADMITTED)
    assert {each.status_code for each in before} == {200}
    assert Counter(each.status_code for each in after) == {200: ADMITTED // 2, 429: ADMITTED // 2}
    assert not {each.text for each in before} & {each.text for each in after}


def test_worker__gevent_patched_after_the_import__says_so_on_first_use(
    shared_state: str, tmp_path: Path
) -> None:
    environ = {"COMPORTA_TEST_STATE": shared_state, "COMPORTA_TEST_GATE": str(tmp_path)}
    with gunicorn("tests.integrations.gunicorn_app", *GEVENT, "--preload", environ=environ) as server:
        assert (
            httpx2.get(server.url, trust_env=False, verify=False, timeout=WAIT_SECONDS_MAX).status_code == 500
        )
        assert "RuntimeError: gevent patched the thread module after comporta was imported" in server.log
        assert "in gunicorn.conf.py" in server.log
