"""Two clients of a service with a limit for each: one stays below it, the other exceeds it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import SlidingWindowLimiter
from comporta.cli.sim_charts import Bars, Mark, Note, Panel, Picture, Point, Steps
from comporta.integrations.asgi import RateLimitMiddleware
from comporta.stores.memory import MemoryStore

_ENDS = 40.0
_CLIENTS = {
    "192.0.2.1": ("a client that sends one request a second", evenly(0.5, _ENDS, 1)),
    "192.0.2.2": (
        "a client that sends five requests a second, stops, and returns",
        [*evenly(5, 20, 5), *evenly(30, 36, 5)],
    ),
}
_REMAINING = re.compile(r"r=(\d+)")
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]


class Client:
    """The responses to one client."""

    def __init__(self) -> None:
        self.answers: dict[int, list[float]] = {200: [], 429: []}
        self.remaining: list[Point] = [(0.0, 20)]
        self.retry_after: list[tuple[float, str]] = []


def picture() -> Picture:
    """Send the requests of both clients through the middleware."""
    panels = []
    for address, client in _run().items():
        panels += _panels(_CLIENTS[address][0], client)
    return Picture(
        "A limit on inbound requests: 20 in any 10 seconds, for each client",
        "One client does not affect the other. Every response says what is left; a refusal, when to retry.",
        panels,
        ends=_ENDS,
        every=5,
    )


def _panels(title: str, client: Client) -> list[Panel]:
    well, refused = (counts_per_slot(client.answers[status], 1, _ENDS) for status in (200, 429))
    marks: list[Mark] = [
        Bars("200", "blue", well),
        Bars("429", "orange", refused, below=well),
    ]
    if client.retry_after:
        moment, seconds = client.retry_after[0]
        marks.append(Note(moment, 6.5, f"the first refusal: Retry-After: {seconds}"))
    return [
        Panel(title, marks, 8, (0, 5), 70),
        Panel(
            "r= of its RateLimit header",
            [Steps("remaining requests, in the last response", "green", client.remaining, filled=True)],
            22,
            (0, 20),
            40,
        ),
    ]


async def _app(_: Message, __: Any, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"found"})


def _run() -> dict[str, Client]:
    clock = SimulatedClock()
    limiter = SlidingWindowLimiter("20/10s", MemoryStore(clock), "api")
    app = RateLimitMiddleware(_app, limiter)
    clients = {address: Client() for address in _CLIENTS}

    async def nothing() -> Message:
        return {"type": "http.request", "body": b""}

    async def request(address: str) -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": (address, 5000)}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                _record(clients[address], clock.seconds, message)

        await app(scope, nothing, send)

    async def scene() -> None:
        moments = sorted((moment, address) for address, (_, every) in _CLIENTS.items() for moment in every)
        addresses = iter([address for _, address in moments])
        await arrivals([moment for moment, _ in moments], lambda: request(next(addresses)))

    run_scene(scene(), clock)
    return clients


def _record(client: Client, moment: float, message: Message) -> None:
    headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
    client.answers[message["status"]].append(moment)
    found = _REMAINING.search(headers["ratelimit"])
    assert found is not None
    client.remaining.append((moment, int(found[1])))
    if "retry-after" in headers:
        client.retry_after.append((moment, headers["retry-after"]))
