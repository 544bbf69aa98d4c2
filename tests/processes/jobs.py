"""What worker processes do. Each job says that it is ready, waits for the word, works and answers.

A job that a test will kill keeps its books in a mapped file instead: what is written there stays.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.books import Book, sealed
from tests.processes.mortal import play

from comporta import (
    BaseLimiter,
    Degradation,
    HierarchicalThrottle,
    LimitConfig,
    LimitStrategy,
    StateUnavailableError,
)
from comporta.limits.token_bucket import TokenBucket
from comporta.stores import shared as shared_module
from comporta.stores.base import Store
from comporta.stores.folder import boot_id
from comporta.stores.records import Write
from comporta.stores.shared import SharedStore

SILENCE_NS = 2_000_000
"""A worker that asked nothing for so long is not counted as asking: the machine was busy elsewhere."""

Stamps = list[tuple[int, int]]


def say(something: Any) -> None:
    """Answer with one line."""
    sys.stdout.write(json.dumps(something) + "\n")
    sys.stdout.flush()


def ready() -> int:
    """Tell that all is open, wait for the word and then for its moment; return that moment."""
    say("ready")
    at_ns = int(sys.stdin.readline())
    while time.monotonic_ns() < at_ns:
        pass
    return at_ns


def limiter_of(url: str | Store, limit: dict[str, Any], name: str = "tested") -> BaseLimiter:
    """Make a limiter from what a test wrote as JSON."""
    strategy = LimitStrategy(limit.get("strategy", "token_bucket"))
    lease = limit.get("lease", False)
    config = LimitConfig(limit["rate"], limit["capacity"], limit.get("window"), strategy, lease=lease)
    return BaseLimiter(config, url, name)


def call(number: int, url: str, limit: dict[str, Any], counts: list[int]) -> None:
    """Ask so many times, one after the other."""
    acquire = limiter_of(url, limit).sync.acquire
    ready()
    grants: Stamps = []
    for _ in range(counts[number]):
        before = time.monotonic_ns()
        if acquire("k"):
            grants.append((before, time.monotonic_ns()))
    say({"grants": grants})


def call_at_once(number: int, url: str, limit: dict[str, Any], counts: list[int]) -> None:
    """Ask so many times at once, from coroutines."""

    async def ask_all() -> list[bool]:
        limiter = limiter_of(url, limit)
        await limiter.peek("other")
        ready()
        try:
            return await asyncio.gather(*(limiter.acquire("k") for _ in range(counts[number])))
        finally:
            await limiter.aclose()

    with asyncio.Runner() as runner:
        before = time.monotonic_ns()
        granted = sum(runner.run(ask_all()))
    say({"grants": [(before, time.monotonic_ns())] * granted})


def lease(number: int, url: str, limit: dict[str, Any], calls: int) -> None:
    """Ask some times, tell how much is in hand then, and sit there idle until told to end."""
    limiter = limiter_of(url, limit)
    granted = sum(limiter.sync.acquire("k") for _ in range(calls))
    assert limiter.verbs.leases is not None
    hand = limiter.verbs.leases._hands["k"]
    in_hand = {"granted": granted, "lent": hand.lent, "left": hand.left}
    ready()
    say(in_hand)


class Watch:
    """Notes when something was granted, and when nothing was asked for."""

    def __init__(self) -> None:
        self.grants: Stamps = []
        self.silences: Stamps = []
        self.began_ns = self.last_ns = self.ended_ns = time.monotonic_ns()

    def note(self, before_ns: int, after_ns: int, *, allowed: bool) -> None:
        if allowed:
            self.grants.append((before_ns, after_ns))
        if after_ns - self.last_ns > SILENCE_NS:
            self.silences.append((self.last_ns, after_ns))
        self.last_ns, self.ended_ns = before_ns, after_ns

    def told(self) -> dict[str, Any]:
        spans = {"grants": self.grants, "silences": self.silences}
        return {**spans, "began_ns": self.began_ns, "ended_ns": self.ended_ns}


def hammer(number: int, url: str, limit: dict[str, Any], seconds: float) -> None:
    """Ask without a pause."""
    acquire = limiter_of(url, limit).sync.acquire
    acquire("other")
    ends_ns = ready() + round(seconds * 1e9)
    watch = Watch()
    after = watch.began_ns
    while after < ends_ns:
        before = after
        allowed = acquire("k")
        after = time.monotonic_ns()
        watch.note(before, after, allowed=allowed)
    say(watch.told())


def hammer_awaiting(
    number: int, url: str, limit: dict[str, Any], seconds: float, coroutines: int = 8
) -> None:
    """Ask without a pause, from several coroutines."""

    async def ask(limiter: BaseLimiter, watch: Watch, ends_ns: int) -> None:
        while (before := time.monotonic_ns()) < ends_ns:
            allowed = await limiter.acquire("k")
            watch.note(before, time.monotonic_ns(), allowed=allowed)
            await asyncio.sleep(0)

    async def ask_all() -> dict[str, Any]:
        limiter = limiter_of(url, limit)
        await limiter.acquire("other")
        ends_ns = ready() + round(seconds * 1e9)
        watch = Watch()
        await asyncio.gather(*(ask(limiter, watch, ends_ns) for _ in range(coroutines)))
        await limiter.aclose()
        return watch.told()

    say(asyncio.run(ask_all()))


# What the killable workers ask, and the columns of their book.
SLOW, LOG, PACED, BURSTS, ROUNDS, STOP = range(6)
COLUMNS = 6
LIMITS: dict[int, dict[str, Any]] = {
    SLOW: {"rate": 0.01, "capacity": 10_000_000},
    LOG: {"rate": 1, "capacity": 1_000_000, "window": 3600, "strategy": "sliding_window"},
    PACED: {"rate": 1000, "capacity": 10},
    BURSTS: {"rate": 1, "capacity": 250, "window": 0.1, "strategy": "sliding_window"},
}
NAMES = {SLOW: "slow", LOG: "log", PACED: "paced", BURSTS: "bursts"}
RECORDS = 8


def steady(number: int, url: str, book: str, rows: int) -> None:
    """Take from four limits and write records until told to stop, or killed."""
    columns = {column: limiter_of(url, limit, NAMES[column]) for column, limit in LIMITS.items()}
    acquires = [(column, limiter.sync.acquire) for column, limiter in columns.items()]
    store = columns[SLOW].store
    with Book(Path(book), rows, COLUMNS) as mine:
        ready()
        turn = 0
        while not mine.get(0, STOP):
            for column, acquire in acquires:
                if acquire("k"):
                    mine.add(number, column)
            letter, length = b"%c" % (97 + turn % 26), 1 + (turn * 997 + number) % 4000
            store.apply(Write("records", f"r{turn % RECORDS}", sealed(letter, length), None))
            turn += 1
            mine.add(number, ROUNDS)
    say("stopped")


def stop_inside(number: int, url: str, limit: dict[str, Any]) -> None:
    """Take twice from a limit; be stopped the second time in the middle of it, with the lock held."""
    step, stops = TokenBucket.step, [False]

    def stopping_step(*arguments: Any) -> Any:
        if stops[0]:
            os.kill(os.getpid(), signal.SIGSTOP)
        return step(*arguments)

    TokenBucket.step = stopping_step  # type: ignore[assignment, method-assign]
    limiter = limiter_of(url, limit)
    taken = [limiter.sync.acquire("k")]
    ready()
    stops[0] = True
    taken.append(limiter.sync.acquire("k"))
    say(taken)


def fork_and_call(number: int, url: str, limit: dict[str, Any], calls: int, how: str) -> None:
    """Open a limit, fork, and ask from both sides at once; then once more after the child is gone."""
    limiter = limiter_of(url, limit)
    limiter.sync.acquire("other")
    at_ns = ready() + 20_000_000
    context: Any = multiprocessing.get_context(how)
    here, there = context.Pipe()
    child = context.Process(
        target=_call_in_child, args=(there, None if how == "fork" else url, limit, at_ns, calls)
    )
    _inherited.append(limiter)
    child.start()
    if how == "spawn":
        here.recv()
    mine = _called(limiter, at_ns, calls)
    theirs = here.recv()
    child.join()
    say({"granted": mine + theirs, "status": child.exitcode, "after": limiter.sync.acquire("other")})


_inherited: list[BaseLimiter] = []


def _call_in_child(parent: Any, url: str | None, limit: dict[str, Any], at_ns: int, calls: int) -> None:
    if url is None:
        [limiter] = _inherited
    else:
        limiter = limiter_of(url, limit)
        parent.send("ready")
    parent.send(_called(limiter, at_ns, calls))


def _called(limiter: BaseLimiter, at_ns: int, calls: int) -> int:
    while time.monotonic_ns() < at_ns:
        pass
    return sum(limiter.sync.acquire("k") for _ in range(calls))


def fork_in_mid_wait(number: int, url: str) -> None:
    """Fork while a thread of the parent waits in line; in the child nobody waits, so it is served."""
    limiter = limiter_of(url, {"rate": 0.001, "capacity": 1})
    limiter.sync.acquire("k")
    waiter = threading.Thread(target=limiter.sync.acquire, args=("k", 1, None))
    waiter.start()
    while "k" not in limiter.verbs.lines.by_key:
        time.sleep(0.001)
    ready()
    warnings.simplefilter("ignore", DeprecationWarning)  # to fork with threads is what is tested
    pid = os.fork()
    if not pid:
        limiter.sync.release("k")
        granted = limiter.sync.acquire("k")
        limiter.sync.release("k")
        os._exit(0 if granted and limiter.sync.acquire("k", timeout=0.5) else 1)
    _, status = os.waitpid(pid, 0)
    limiter.sync.reset("k")
    waiter.join(60)
    say({"child": os.waitstatus_to_exitcode(status), "parent served": not waiter.is_alive()})


def fork_under_load(number: int, url: str, forks: int) -> None:
    """Fork again and again while other threads take and give locks; every child must get its answer."""
    limiter = limiter_of(url, LIMITS[SLOW])
    limiter.sync.acquire("k")  # what a client imports when first used must not be under way at a fork
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            limiter.sync.acquire("k")
            limiter.sync.peek("k")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready()
    warnings.simplefilter("ignore", DeprecationWarning)  # to fork with threads is what is tested
    children = []
    for _ in range(forks):
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            os._exit(0 if limiter.sync.acquire("k") and limiter.sync.peek("k") else 1)
        _, status = os.waitpid(pid, 0)
        children.append(os.waitstatus_to_exitcode(status))
    over.set()
    for thread in threads:
        thread.join()
    say({"children": children})


def fork_from_a_loop(number: int, url: str) -> None:
    """Fork inside an event loop that has used a limit; both sides go on awaiting it, each on its own loop."""
    limiter = limiter_of(url, {"rate": 0.001, "capacity": 20})

    async def ask_all() -> int:
        try:
            return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(20))))
        finally:
            await limiter.aclose()

    async def parent() -> tuple[int, int]:
        await limiter.acquire("other")
        pid = os.fork()
        if not pid:
            os._exit(asyncio.run(ask_all()))
        mine = await ask_all()
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        return mine, os.waitstatus_to_exitcode(status)

    ready()
    say({"granted": sum(asyncio.run(parent()))})


def open_and_take(number: int, name: str, keys: int, calls: int) -> None:
    """Open a shared state at the same moment as others, and take from it."""
    ready()
    store = SharedStore(name, keys=keys, lock_timeout=5)
    limiter = BaseLimiter("20/hour", store, "tested")
    say({"granted": sum(limiter.sync.acquire("k") for _ in range(calls))})


def interrupted(number: int, url: str, seconds: float) -> None:
    """Ask, and be interrupted at any moment by a signal handler that raises, as time limits do."""

    class OutOfTimeError(Exception):
        pass

    armed = [False]

    def raise_it(*_: object) -> None:
        if armed[0]:  # once for each time it is armed
            armed[0] = False
            raise OutOfTimeError

    limiter = limiter_of(url, LIMITS[SLOW])
    signal.signal(signal.SIGALRM, raise_it)
    ends_ns, interruptions = ready() + round(seconds * 1e9), 0
    kept: list[Exception] = []  # as futures and loggers keep them, frames and all
    while time.monotonic_ns() < ends_ns:
        try:
            # again every 10 ms: what is raised in a finalizer is lost
            signal.setitimer(signal.ITIMER_REAL, 2e-5 + interruptions % 97 * 3e-6, 0.01)
            armed[0] = True
            for turn in itertools.count():
                limiter.sync.acquire("k")
                limiter.sync.peek("k")
                limiter.sync.acquire(f"k{turn % 50}")
        except OutOfTimeError as error:
            interruptions += 1
            kept.append(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    say(interruptions)
    ready()
    signal.alarm(20)  # whoever waits for a lock that was left behind waits for ever
    say(all(limiter.sync.acquire(f"k{turn}") for turn in range(50)))


def as_user(number: int, uid: int, name: str, path: str) -> None:
    """Become another user, use a state of the same name, and try to look at the first user's."""
    boot_id()  # what Python loads for it may lie where only the first user can read
    os.setgid(uid)
    os.setuid(uid)
    ready()
    store = SharedStore(name, keys=128)
    limiter = BaseLimiter("5/hour", store, "tested")
    granted = sum(limiter.sync.acquire("k") for _ in range(10))
    store.close()
    try:
        seen = str(os.listdir(path))  # noqa: PTH208 - nothing but whether it is allowed
    except PermissionError:
        seen = "refused"
    say({"granted": granted, "path": store.path, "seen": seen})


def tiny_disk(number: int, name: str, folder: str) -> None:
    """Open states on a disk of 4 MB, and again when it is read-only. Runs with mounts of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], check=True)
    shared_module.path_of = lambda name: f"{folder}/{name}"  # type: ignore[attr-defined]
    ready()

    def problem(name: str, keys: int) -> str:
        try:
            SharedStore(name, keys=keys).close()
        except StateUnavailableError as error:
            return str(error)
        return "none"

    found: dict[str, Any] = {"too large": problem(name, 16_384), "left behind": _names(folder)}
    store = SharedStore(name, keys=128)
    found["small enough"] = BaseLimiter("5/hour", store, "tested").sync.acquire("k")
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    found |= {"read-only, new": problem(f"{name}-new", 128), "read-only, there": problem(name, 128)}
    say(found)


def _names(folder: str) -> list[str]:
    return [path.name for path in Path(folder).iterdir()]


def hold(number: int, name: str, locks: list[int]) -> None:
    """Hold some locks of a table until killed."""
    store = SharedStore(name, lock_timeout=5)
    for fd, _ in store.guards(set(locks)):
        fcntl.flock(fd, fcntl.LOCK_EX)
    ready()


def mortal(number: int, url: str, act: str, *, opcodes: bool) -> None:
    """Let forked children die at every step of an act."""
    ready()
    say(play(url.removeprefix("shared://").partition("?")[0], act, opcodes=opcodes))


def report_errors(number: int, url: str, limit: dict[str, Any], errors: int) -> None:
    """Tell of some errors of the upstream."""
    degradation = Degradation(limiter_of(url, limit))
    ready()
    for _ in range(errors):
        degradation.sync.record_error()
    say({"done": True})


def ask_when_told(number: int, url: str, limit: dict[str, Any]) -> None:
    """Ask once for each word, and tell the limit in force."""
    limiter = limiter_of(url, limit)
    ready()
    while True:
        say({"allowed": limiter.sync.acquire(), "limit": limiter.sync.stats().limit})
        sys.stdin.readline()


def degrade_and_take(url: str, errors: int, number: int) -> None:
    """Report errors of one partition of a throttle; then take all there is of it and of another."""
    throttle = HierarchicalThrottle(1000, 100, per=86_400, state=url, name="tested").sync
    ready()
    for _ in range(errors):
        throttle.record_error("degraded")
    say({"done": True})
    ready()
    limit = throttle.current_limit("degraded")
    taken = {
        each: sum(throttle.acquire(each, timeout=0) for _ in range(15)) for each in ("degraded", "other")
    }
    say({"limit": limit, **taken})


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        call,
        call_at_once,
        lease,
        hammer,
        hammer_awaiting,
        steady,
        stop_inside,
        fork_and_call,
        fork_in_mid_wait,
        fork_from_a_loop,
        fork_under_load,
        open_and_take,
        interrupted,
        as_user,
        tiny_disk,
        hold,
        mortal,
        report_errors,
        ask_when_told,
        degrade_and_take,
    )
}
