"""The demo from its first line to its last: what is started, played and told, and how it ends."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta.demo.picture import NOTHING, WINDOW_SECONDS, figures, status
from comporta.demo.plan import LIMITS, Pace
from comporta.demo.processes import START_SECONDS, DemoError, Stage
from comporta.demo.stories import STORIES, TOUR, Act, Step, Story
from comporta.demo.telling import Page, Terminal
from comporta.stores.urls import forget_stores

if TYPE_CHECKING:
    from comporta.demo.looking import Lookout

AGAIN_SECONDS: Final = 2.0
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

    _lookout: Lookout
    _page: Page

    def __init__(self, asked: Asked, listener: socket.socket) -> None:
        self._asked = asked
        self._token = f"demo-{secrets.token_hex(8)}"
        server = asked.story is not None and asked.story.server
        self._stage = Stage(listener, asked.workers, asked.pace, self._token, server=server)
        self._terminal = Terminal(self._end)
        self._missed: list[str] = []
        self._seen = NOTHING
        self._ending = False
        self._playing: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Play, until it is over or somebody ends it; then nothing is left."""
        loop = asyncio.get_running_loop()
        self._playing = playing = asyncio.ensure_future(self._played())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end)
        await asyncio.wait([playing])
        self._ending = True
        began = time.monotonic()
        await self._stage.close()
        forget_stores()
        if not playing.cancelled():
            playing.result()
        return self._summary(time.monotonic() - began)

    def _end(self) -> None:
        """End once; whoever is impatient changes nothing."""
        if not self._ending and self._playing is not None:
            self._ending = True
            self._playing.cancel()

    async def _played(self) -> None:
        self._terminal.headline(self._stage.address, self._token, self._asked.workers)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._asked.seconds):
                await self._stage.open()
                self._terminal.elsewhere(self._stage.state.partition("?")[0], self._stage.database)
                await self._looked_after()

    async def _looked_after(self) -> None:
        """Play while everything is looked after; whatever goes wrong there ends it."""
        from comporta.demo.looking import Lookout  # noqa: PLC0415 - takes a while, and the others start meanwhile

        self._lookout, self._page = Lookout(self._stage), Page(self._stage.state)
        beside: tuple[Coroutine[Any, Any, None], ...] = (
            self._stage.keep(),
            self._lookout.look(),
            self._showing(),
        )
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one) for one in beside]
                await self._plot()
                for task in tasks:
                    task.cancel()
        except* DemoError as errors:
            raise _first(errors) from None
        finally:
            self._seen = self._lookout.picture
            await self._page.aclose()

    async def _plot(self) -> None:
        await self._ready()
        if self._asked.story is None and self._asked.endless:
            await self._round()
        await self._tell(self._asked.story or TOUR)
        if self._asked.endless:
            await self._quiet(self._asked.story or TOUR, "That was the story. All goes on until Ctrl-C.")
            await asyncio.Event().wait()

    async def _quiet(self, story: Story, text: str) -> None:
        self._terminal.gap()
        self._terminal.line(text)
        await self._page.put(story, len(story.steps), "Quiet", text, "")

    async def _round(self) -> None:
        """Play one story after the other, unless somebody else does something to the portals."""
        rest = self._asked.pace.rest
        while True:
            for story in ROUND:
                await self._tell(story)
                await self._quiet(
                    story,
                    "It is quiet now. Break something yourself, with the buttons on the page; else the next "
                    f"story begins in {rest:g} s.",
                )
                await asyncio.sleep(rest)
                await self._lookout.until(lambda now: now.mended(), None)

    async def _ready(self) -> None:
        number = self._asked.workers
        if not await self._lookout.until(lambda now: now.workers >= number, START_SECONDS):
            raise DemoError(f"the service did not start within {START_SECONDS:g} s: {self._stage.log()}")

    async def _tell(self, story: Story) -> None:
        for number, step in enumerate(story.steps, 1):
            self._terminal.step(number, story, step)
            await self._page.put(story, number, step.title, step.text, step.look)
            await self._page.note(step.title)
            text = await self._play(step)
            await self._page.put(story, number, step.title, f"{step.text} {text}", step.look)
            await self._page.note(text)
            await asyncio.sleep(self._asked.pace.hold)

    async def _play(self, step: Step) -> str:
        """Do what a step does, wait until it has come to be, or for so long, and return what came of it."""
        before, began, pace = self._lookout.picture, time.monotonic(), self._asked.pace
        for act in step.acts:
            await self._do(act)
        happened = await self._lookout.until(lambda now: step.until(now, before), pace.patience)
        seconds = time.monotonic() - began
        if happened:
            text = step.then.format_map(figures(self._lookout.picture, before, seconds))
        else:
            text = f"{pace.patience:g} s have passed, and it is not so that {step.wanted}."
            self._missed.append(step.title)
        self._terminal.outcome(text, happened=happened)
        return text

    async def _do(self, act: Act) -> None:
        if act.kind == "portal":
            await self._lookout.switch(act.name, act.switches)
        elif act.kind == "state":
            await self._stage.tell_server(act.name)
        else:
            self._stage.kill_worker()

    async def _showing(self) -> None:
        """Say how things stand now and then, and remind the page of the story."""
        said = time.monotonic()
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            await self._page.tell()
            if time.monotonic() - said >= self._asked.pace.status and self._lookout.picture.workers:
                said = time.monotonic()
                self._terminal.figures(status(self._lookout.picture))

    def _summary(self, seconds: float) -> int:
        """Say what came of it, and return the exit status."""
        broken = [f"It did not come to be: {title}." for title in self._missed]
        self._terminal.gap()
        for name, limit in LIMITS.items() if self._seen is not NOTHING else ():
            most, busiest = limit.most(WINDOW_SECONDS, self._asked.workers), self._seen.busiest(name)
            self._terminal.line(
                f"{name.upper()} saw {busiest} requests in its busiest ten seconds; {most:g} are allowed."
            )
            if busiest > most:
                broken.append(f"The limit of {name.upper()} was not kept.")
            if refused := self._seen.too_many(name):
                broken.append(f"{name.upper()} had to refuse {refused} requests as too many.")
        for text in broken:
            self._terminal.outcome(text, happened=False)
        self._terminal.line(f"Everything has ended, in {seconds:.1f} s; nothing is left behind.")
        return 1 if broken or self._terminal.deaf else 0


def _first(errors: BaseExceptionGroup[DemoError]) -> DemoError:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return DemoError(str(found))
