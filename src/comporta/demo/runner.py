"""Runs the demo: starts its processes, plays the scenarios, checks their promises and cleans up.

It knows nothing of HTTP or of how a process is started: the poller and ``processes`` do.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta.demo.config import LIMITS, Pace
from comporta.demo.narrator import DashboardNarrator, TerminalNarrator
from comporta.demo.processes import START_SECONDS, DemoError, DemoProcesses
from comporta.demo.scenarios import SCENARIOS, TOUR, Action, Scenario, ScenarioStep
from comporta.demo.snapshot import EMPTY_SNAPSHOT, WINDOW_SECONDS, status_line, template_values
from comporta.stores.registry import close_stores

if TYPE_CHECKING:
    from comporta.demo.poller import DemoPoller

REPUBLISH_SECONDS: Final = 2.0
CYCLE: Final = (TOUR, SCENARIOS["throttled"], SCENARIOS["slow"], SCENARIOS["crowd"])
"""The scenarios that run in turn if the user chooses none."""


class DemoOptions(NamedTuple):
    """The options of ``comporta demo``; ``run_forever``: run until stopped, else one scenario only."""

    scenario: Scenario | None
    workers: int
    seconds: float | None
    pace: Pace
    run_forever: bool


def run_demo(options: DemoOptions, listener: socket.socket) -> int:
    """Run the demo and return the exit status: 1 if it broke a promise."""
    return asyncio.run(DemoRunner(options, listener).run())


class DemoRunner:
    """One run of the demo."""

    _poller: DemoPoller
    _dashboard: DashboardNarrator

    def __init__(self, options: DemoOptions, listener: socket.socket) -> None:
        self._options = options
        self._token = f"demo-{secrets.token_hex(8)}"
        server = options.scenario is not None and options.scenario.needs_server
        self._processes = DemoProcesses(listener, options.workers, options.pace, self._token, server=server)
        self._terminal = TerminalNarrator(self._request_end)
        self._failed_steps: list[str] = []
        self._last_snapshot = EMPTY_SNAPSHOT
        self._highest_limits = dict(LIMITS)
        self._is_ending = False
        self._main_task: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Run until the scenarios or the user end it; then stop all processes and remove all files."""
        loop = asyncio.get_running_loop()
        self._main_task = main_task = asyncio.ensure_future(self._run_demo())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._request_end)
        await asyncio.wait([main_task])
        self._is_ending = True
        began = time.monotonic()
        await self._processes.close()
        close_stores()
        if not main_task.cancelled():
            main_task.result()
        return self._print_summary(time.monotonic() - began)

    def _request_end(self) -> None:
        """Cancel the demo; further signals have no effect."""
        if not self._is_ending and self._main_task is not None:
            self._is_ending = True
            self._main_task.cancel()

    async def _run_demo(self) -> None:
        processes = self._processes
        self._terminal.print_headline(processes.address, self._token, self._options.workers)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.seconds):
                await processes.start()
                self._terminal.print_top_command(processes.state.partition("?")[0], processes.database)
                await self._run_supervised()

    async def _run_supervised(self) -> None:
        """Run the scenarios beside the background tasks; an error in one of those ends the demo."""
        from comporta.demo.poller import DemoPoller  # noqa: PLC0415 - slow, and the processes start meanwhile

        self._poller = DemoPoller(self._processes)
        self._dashboard = DashboardNarrator(self._processes.state)
        background: tuple[Coroutine[Any, Any, None], ...] = (
            self._processes.supervise(),
            self._poller.run(),
            self._report_status(),
        )
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(coroutine) for coroutine in background]
                await self._run_scenarios()
                for task in tasks:
                    task.cancel()
        except* DemoError as errors:
            raise _first_error(errors) from None
        finally:
            self._last_snapshot = self._poller.snapshot
            self._highest_limits = self._poller.highest_limits
            await self._dashboard.aclose()

    async def _run_scenarios(self) -> None:
        await self._wait_until_ready()
        if self._options.scenario is None and self._options.run_forever:
            await self._cycle_scenarios()
        scenario = self._options.scenario or TOUR
        await self._run_scenario(scenario)
        if self._options.run_forever:
            text = "The scenario is over. The service runs until you press Ctrl-C."
            await self._announce_pause(scenario, text)
            await asyncio.Event().wait()

    async def _announce_pause(self, scenario: Scenario, text: str) -> None:
        self._terminal.print_blank_line()
        self._terminal.print_line(text)
        await self._dashboard.show_step(scenario, len(scenario.steps), "Pause", text, "")

    async def _cycle_scenarios(self) -> None:
        """Run one scenario after another; wait while a user keeps a portal broken."""
        pause = self._options.pace.scenario_pause
        while True:
            for scenario in CYCLE:
                await self._run_scenario(scenario)
                await self._announce_pause(
                    scenario,
                    "Nothing is broken now. Break something yourself with the buttons on the page; otherwise "
                    f"the next scenario starts in {pause:g} s.",
                )
                await asyncio.sleep(pause)
                await self._poller.wait_for(lambda now: now.are_portals_healthy(), None)

    async def _wait_until_ready(self) -> None:
        workers = self._options.workers
        if not await self._poller.wait_for(lambda now: now.workers >= workers, START_SECONDS):
            raise DemoError(
                f"the service did not start within {START_SECONDS:g} s: {self._processes.last_log_line()}"
            )

    async def _run_scenario(self, scenario: Scenario) -> None:
        for number, step in enumerate(scenario.steps, 1):
            self._terminal.print_step(number, scenario, step)
            await self._dashboard.show_step(scenario, number, step.title, step.text, step.look_at)
            await self._dashboard.add_event(step.title)
            result = await self._run_step(step)
            text = f"{step.text} {result}"
            await self._dashboard.show_step(scenario, number, step.title, text, step.look_at)
            await self._dashboard.add_event(result)
            await asyncio.sleep(self._options.pace.step_pause)

    async def _run_step(self, step: ScenarioStep) -> str:
        """Perform the actions of a step, wait for its condition, and return the result in a sentence."""
        before, began, pace = self._poller.snapshot, time.monotonic(), self._options.pace
        for action in step.actions:
            await self._perform(action)
        succeeded = await self._poller.wait_for(lambda now: step.condition(now, before), pace.step_timeout)
        seconds = time.monotonic() - began
        if succeeded:
            text = step.result.format_map(template_values(self._poller.snapshot, before, seconds))
        else:
            text = f"The step timed out after {pace.step_timeout:g} s. Expected: {step.expectation}."
            if self._poller.overridden:
                changed = " and ".join(sorted(name.upper() for name in self._poller.overridden))
                text += f" An operator changed {changed}, so this does not count."
            else:
                self._failed_steps.append(step.title)
        self._terminal.print_result(text, succeeded=succeeded)
        return text

    async def _perform(self, action: Action) -> None:
        if action.kind == "portal":
            await self._poller.set_portal_mode(action.name, action.switches)
        elif action.kind == "state":
            await self._processes.command_server(action.name)
        elif action.kind == "crowd":
            self._poller.crowd.start(action.name)
        else:
            self._processes.kill_worker()

    async def _report_status(self) -> None:
        """Print a status line now and then, and republish the current step to the dashboard."""
        reported_at = time.monotonic()
        while True:
            await asyncio.sleep(REPUBLISH_SECONDS)
            await self._dashboard.publish()
            is_due = time.monotonic() - reported_at >= self._options.pace.status_interval
            if is_due and self._poller.snapshot.workers:
                reported_at = time.monotonic()
                self._terminal.print_status(status_line(self._poller.snapshot))

    def _print_summary(self, seconds: float) -> int:
        """Print which promises held, and return the exit status."""
        broken = [f"This step failed: {title}." for title in self._failed_steps]
        self._terminal.print_blank_line()
        for name, limit in self._highest_limits.items() if self._last_snapshot is not EMPTY_SNAPSHOT else ():
            allowed = limit.requests_max(WINDOW_SECONDS, self._options.workers)
            busiest = self._last_snapshot.busiest_count(name)
            self._terminal.print_line(
                f"{name.upper()} received {busiest} requests in its busiest 10 s; at most {allowed:g} are "
                "allowed."
            )
            if busiest > allowed:
                broken.append(f"The fleet exceeded the limit of {name.upper()}.")
            rejected = self._last_snapshot.rejected_count(name)
            if limit != LIMITS[name]:
                self._terminal.print_line(
                    f"An operator raised the limit of {name.upper()} to {limit}, above the {LIMITS[name]} "
                    f"that it accepts; it rejected {rejected} requests."
                )
            elif rejected:
                broken.append(f"{name.upper()} rejected {rejected} requests that exceeded its limit.")
        for text in broken:
            self._terminal.print_result(text, succeeded=False)
        self._terminal.print_line(
            f"All processes ended in {seconds:.1f} s; the demo left no files and no processes behind."
        )
        return 1 if broken or self._terminal.closed else 0


def _first_error(errors: BaseExceptionGroup[DemoError]) -> DemoError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return DemoError(str(error))
