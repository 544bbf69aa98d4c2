"""An ASGI application with the limits of ``gunicorn_app.py``, which all workers of hypercorn share."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.integrations.gunicorn_app import hold, inbound, leased

from comporta.integrations.asgi import RateLimitMiddleware, Receive, RefusalMiddleware, Scope, Send

signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as docs/operations/gunicorn.md recommends


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with the process that served the request."""
    if scope["type"] == "lifespan":
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})
        return
    if scope["path"] == "/hold":
        await asyncio.to_thread(hold)
    elif scope["path"] == "/lease":
        await leased.acquire()
    elif scope["path"] == "/":
        await asyncio.sleep(0.02)  # sleeps: a request takes this long, so that several workers serve them
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(os.getpid()).encode()})


application = RateLimitMiddleware(
    RefusalMiddleware(app), inbound, key=lambda scope: "all" if scope["path"] == "/" else None
)
