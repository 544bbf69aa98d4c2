"""A WSGI application with limits that all workers of gunicorn share.

``COMPORTA_TEST_STATE`` is the URL of the store, ``COMPORTA_TEST_GATE`` a file for which ``/hold`` waits.
``COMPORTA_TEST_USE`` makes the module use a limit while it is imported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from comporta import ConcurrencyLimit, FixedWindowLimiter, LimitConfig, TokenBucketLimiter
from comporta.integrations.wsgi import Environ, StartResponse, WsgiRateLimitMiddleware, WsgiRefusalMiddleware

STATE = os.environ["COMPORTA_TEST_STATE"]
ADMITTED = 60
LEASED = 1000
LEASE_SECONDS = 10.0
PERMITS = 3

inbound = FixedWindowLimiter(f"{ADMITTED}/hour", STATE, "inbound")
leased = TokenBucketLimiter(LimitConfig(0.001, LEASED, lease=LEASE_SECONDS), STATE, "leased")
permits = ConcurrencyLimit("permits", PERMITS, state=STATE)
waits = TokenBucketLimiter("20/s burst 1", STATE, "waits")

if os.environ.get("COMPORTA_TEST_USE"):
    leased.sync.acquire()
    with permits.sync.slot():
        waits.sync.acquire(timeout=1)


def hold() -> None:
    """Hold a permit until the test opens the gate."""
    gate = Path(os.environ["COMPORTA_TEST_GATE"])
    with permits.sync.slot():
        deadline = time.monotonic() + 60
        while not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def app(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with the process that served the request."""
    path = environ["PATH_INFO"]
    if path == "/hold":
        hold()
    elif path == "/lease":
        leased.sync.acquire()
    elif path == "/wait":
        waits.sync.acquire(timeout=30)
    elif path == "/":
        time.sleep(0.02)  # sleeps: a request takes this long, so that several workers serve them
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


application = WsgiRateLimitMiddleware(
    WsgiRefusalMiddleware(app), inbound, key=lambda environ: "all" if environ["PATH_INFO"] == "/" else None
)
