"""The demo from its first line to its last: what is started, watched, played and told, and how it ends."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import httpx2

from comporta.demo.picture import NOTHING, WINDOW_SECONDS, Picture, figures, status
from comporta.demo.plan import LIMITS, Pace
from comporta.demo.processes import START_SECONDS, DemoError, Stage
from comporta.demo.stories import ALONE_LATEST, STORIES, TOUR, Act, Step, Story
from comporta.demo.telling import Page, Terminal
from comporta.stores.urls import forget_stores

LOOK_SECONDS: Final = 0.25
AGAIN_SECONDS: Final = 2.0
ASK_SECONDS: Final = 1.5
ROUND: Final = (TOUR, STORIES["throttled"], STORIES["slow"])
"""What is played in turn where no story was asked for."""


class Asked(NamedTuple):
    """What was asked for; ``endless``: until somebody ends it, else one story and no more."""

    story: Story | None
    workers: int
    seconds: float | None
    pace: Pace
    endless: bool


def run(asked: Asked, listener: socket.socket) -> int:
    """Show it; returns the exit status: 1 if a promise was not kept."""
    return asyncio.run(Show(asked, listener).run())


class Show:
    """One demo."""

    def __init__(self, asked: Asked, listener: socket.socket) -> None:
        self._asked = asked
        token = f"demo-{secrets.token_hex(8)}"
        server = asked.story is not None and asked.story.server
        self._stage = Stage(listener, asked.workers, asked.pace, token, server=server)
        self._token = token
        self._terminal = Terminal()
        self._picture = NOTHING
        self._alone: deque[bool] = deque(maxlen=ALONE_LATEST)
        self._missed: list[str] = []
        self._ended = False

    async def run(self) -> int:
        """Play, until it is over or somebody ends it; then nothing is left."""
        loop = asyncio.get_running_loop()
        playing = asyncio.ensure_future(self._played())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, playing)
        try:
            await asyncio.wait([playing])
        finally:
            self._ended = True
            ended = time.monotonic()
            await self._stage.close()
            forget_stores()
        if not playing.cancelled():
            playing.result()
        return self._summary(time.monotonic() - ended)

    def _end(self, playing: asyncio.Future[None]) -> None:
        """End once; whoever is impatient changes nothing."""
        if not self._ended:
            self._ended = True
            playing.cancel()

    async def _played(self) -> None:
        self._terminal.headline(self._stage.address, self._token, self._asked.workers)
        limits = httpx2.Limits(
            max_keepalive_connections=0
        )  # so that any worker answers, also when one has died
        async with httpx2.AsyncClient(timeout=ASK_SECONDS, limits=limits, trust_env=False) as self._client:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._asked.seconds):
                    await self._stage.open()
                    await self._beside(self._plot)

    async def _beside(self, plot: Callable[[Page], Any]) -> None:
        """Play while everything is looked after; whatever goes wrong there ends it."""
        page = Page(self._stage.state)
        try:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(self._stage.keep()),
                    group.create_task(self._looking()),
                    group.create_task(self._showing(page)),
                ]
                await plot(page)
                for task in beside:
                    task.cancel()
        except* DemoError as errors:
            raise _first(errors) from None

    async def _plot(self, page: Page) -> None:
        await self._ready()
        if self._asked.story is not None or not self._asked.endless:
            await self._tell(self._asked.story or TOUR, page)
            if self._asked.endless:
                self._terminal.line("That was the story. The load goes on until Ctrl-C.")
                await asyncio.Event().wait()
            return
        while True:
            for story in ROUND:
                await self._tell(story, page)
                self._terminal.line(
                    "It is quiet now. Break something yourself, by the buttons on the page; else the next story "
                    f"begins in {self._asked.pace.rest:g} s."
                )
                await asyncio.sleep(self._asked.pace.rest)
                await self._until(lambda now: now.mended(), None)

    async def _ready(self) -> None:
        workers = self._asked.workers
        if not await self._until(lambda now: now.workers >= workers and bool(now.portals), START_SECONDS):
            raise DemoError(f"the service did not start within {START_SECONDS:g} s: {self._stage.log()}")

    async def _tell(self, story: Story, page: Page) -> None:
        for number, step in enumerate(story.steps, 1):
            self._terminal.step(number, story, step)
            await page.step(number, story, step)
            await self._play(step)

    async def _play(self, step: Step) -> None:
        """Do what a step does, and wait until it has come to be, or for so long."""
        before, began, pace = self._picture, time.monotonic(), self._asked.pace
        for act in step.acts:
            await self._do(act)
        happened = await self._until(lambda now: step.until(now, before), pace.patience)
        seconds = time.monotonic() - began
        if happened:
            text = step.then.format_map(figures(self._picture, before, seconds))
        else:
            text = f"{pace.patience:g} s have passed, and it is not so that {step.wanted}."
            self._missed.append(step.title)
        self._terminal.outcome(text, happened=happened)
        await asyncio.sleep(max(0.0, pace.hold - seconds))

    async def _do(self, act: Act) -> None:
        if act.kind == "portal":
            await self._client.put(f"{self._stage.control}/control/{act.name}", json=dict(act.switches))
        elif act.kind == "state":
            await self._stage.tell_server(act.name)
        else:
            self._stage.kill_worker()

    async def _until(self, true: Callable[[Picture], bool], seconds: float | None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not true(self._picture):
                    await asyncio.sleep(LOOK_SECONDS / 2)
                return True
        return False

    async def _looking(self) -> None:
        """Look how things are, again and again; each time another worker may answer."""
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        with suppress(httpx2.HTTPError, ValueError):
            health = (await self._client.get(f"{self._stage.address}/v1/health")).json()
            portals = (await self._client.get(f"{self._stage.control}/control")).json()
            self._alone.append(health["state"]["fallback"] is not None)
            self._picture = Picture(
                health, portals, self._stage.counts, self._stage.replaced, sum(self._alone)
            )

    async def _showing(self, page: Page) -> None:
        """Say how things stand now and then, and remind the page of the story."""
        said = time.monotonic()
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            await page.again()
            if time.monotonic() - said >= self._asked.pace.status and self._picture.workers:
                said = time.monotonic()
                self._terminal.figures(status(self._picture))

    def _summary(self, seconds: float) -> int:
        """Say what came of it, and return the exit status."""
        now, workers = self._picture, self._asked.workers
        broken = [f"this did not happen: {title}" for title in self._missed]
        for name, limit in LIMITS.items():
            most = limit.most(WINDOW_SECONDS, workers)
            if now.busiest(name) > most or now.too_many(name):
                broken.append(f"{name.upper()} saw {now.busiest(name)} requests in ten seconds, of {most:g}")
        self._terminal.line("")
        if now is not NOTHING:
            self._terminal.line(
                "; ".join(
                    f"{name.upper()} saw {now.busiest(name)} requests in its busiest ten seconds, "
                    f"{limit.most(WINDOW_SECONDS, workers):g} are allowed"
                    for name, limit in LIMITS.items()
                )
                + "."
            )
        for text in broken:
            self._terminal.outcome(text, happened=False)
        self._terminal.line(f"Everything has ended, in {seconds:.1f} s; nothing is left behind.")
        return 1 if broken else 0


def _first(errors: BaseExceptionGroup[DemoError]) -> DemoError:
    found: Any = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return DemoError(str(found))
