"""The jobs of worker processes. Each reports that it is ready, waits for the start signal, works and reports.

A job that a test kills counts in a mapped file instead, whose contents survive the kill.
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

from tests.processes.counter_file import CounterFile, with_checksum

from comporta import (
    BaseLimiter,
    Degradation,
    HierarchicalThrottle,
    LimitConfig,
    LimitStrategy,
    StateUnavailableError,
    events,
)
from comporta.limits.strategies.token_bucket import TokenBucketStrategy
from comporta.stores.base import Store
from comporta.stores.records import WriteRecord
from comporta.stores.shared import store as shared_module
from comporta.stores.shared.directory import boot_id
from comporta.stores.shared.store import SharedStore

SILENCE_NS = 2_000_000
"""A gap between calls of this length counts as silence: the machine was busy with other programs."""

Stamps = list[tuple[int, int]]


def send_result(result: Any) -> None:
    """Print a result as one line of JSON."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def wait_for_start() -> int:
    """Report that the store is open, wait for the start signal and its moment, and return that moment."""
    send_result("ready")
    at_ns = int(sys.stdin.readline())
    while time.monotonic_ns() < at_ns:
        pass
    return at_ns


def make_limiter(url: str | Store, limit: dict[str, Any], name: str = "tested") -> BaseLimiter:
    """Return a limiter for the JSON description of a limit."""
    strategy = LimitStrategy(limit.get("strategy", "token_bucket"))
    lease = limit.get("lease", False)
    config = LimitConfig(limit["rate"], limit["capacity"], limit.get("window"), strategy, lease=lease)
    return BaseLimiter(config, url, name)


def call(number: int, url: str, limit: dict[str, Any], counts: list[int]) -> None:
    """Acquire ``counts[number]`` times, one after the other."""
    acquire = make_limiter(url, limit).sync.acquire
    wait_for_start()
    grants: Stamps = []
    for _ in range(counts[number]):
        before = time.monotonic_ns()
        if acquire("k"):
            grants.append((before, time.monotonic_ns()))
    send_result({"grants": grants})


def call_concurrently(number: int, url: str, limit: dict[str, Any], counts: list[int]) -> None:
    """Acquire ``counts[number]`` times concurrently, from coroutines."""

    async def acquire_all() -> list[bool]:
        limiter = make_limiter(url, limit)
        await limiter.peek("other")
        wait_for_start()
        try:
            return await asyncio.gather(*(limiter.acquire("k") for _ in range(counts[number])))
        finally:
            await limiter.aclose()

    with asyncio.Runner() as runner:
        before = time.monotonic_ns()
        granted = sum(runner.run(acquire_all()))
    send_result({"grants": [(before, time.monotonic_ns())] * granted})


def hold_lease(number: int, url: str, limit: dict[str, Any], calls: int) -> None:
    """Acquire ``calls`` times, report the tokens of the lease, and idle until the start signal."""
    limiter = make_limiter(url, limit)
    granted = sum(limiter.sync.acquire("k") for _ in range(calls))
    assert limiter._flows.lease_client is not None
    lease = limiter._flows.lease_client._leases["k"]
    report = {"granted": granted, "leased": lease.lent, "remaining": lease.left}
    wait_for_start()
    send_result(report)


class GrantLog:
    """Records when calls were granted, and when no call was made."""

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

    def as_dict(self) -> dict[str, Any]:
        spans = {"grants": self.grants, "silences": self.silences}
        return {**spans, "began_ns": self.began_ns, "ended_ns": self.ended_ns}


def hammer(number: int, url: str, limit: dict[str, Any], seconds: float) -> None:
    """Acquire without a pause for some seconds."""
    acquire = make_limiter(url, limit).sync.acquire
    acquire("other")
    ends_ns = wait_for_start() + round(seconds * 1e9)
    log = GrantLog()
    after = log.began_ns
    while after < ends_ns:
        before = after
        allowed = acquire("k")
        after = time.monotonic_ns()
        log.note(before, after, allowed=allowed)
    send_result(log.as_dict())


def hammer_async(number: int, url: str, limit: dict[str, Any], seconds: float, coroutines: int = 8) -> None:
    """Acquire without a pause for some seconds, from several coroutines."""

    async def acquire_continuously(limiter: BaseLimiter, log: GrantLog, ends_ns: int) -> None:
        while (before := time.monotonic_ns()) < ends_ns:
            allowed = await limiter.acquire("k")
            log.note(before, time.monotonic_ns(), allowed=allowed)
            await asyncio.sleep(0)

    async def acquire_all() -> dict[str, Any]:
        limiter = make_limiter(url, limit)
        await limiter.acquire("other")
        ends_ns = wait_for_start() + round(seconds * 1e9)
        log = GrantLog()
        await asyncio.gather(*(acquire_continuously(limiter, log, ends_ns) for _ in range(coroutines)))
        await limiter.aclose()
        return log.as_dict()

    send_result(asyncio.run(acquire_all()))


# The limits that the killed workers use, and the columns of their counter file.
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


def acquire_until_stopped(number: int, url: str, counters: str, rows: int) -> None:
    """Acquire from four limits and write records until the counter file says stop, or until killed."""
    columns = {column: make_limiter(url, limit, NAMES[column]) for column, limit in LIMITS.items()}
    acquires = [(column, limiter.sync.acquire) for column, limiter in columns.items()]
    store = columns[SLOW].store
    with CounterFile(Path(counters), rows, COLUMNS) as file:
        wait_for_start()
        turn = 0
        while not file.get(0, STOP):
            for column, acquire in acquires:
                if acquire("k"):
                    file.add(number, column)
            letter, length = b"%c" % (97 + turn % 26), 1 + (turn * 997 + number) % 4000
            store.apply(WriteRecord("records", f"r{turn % RECORDS}", with_checksum(letter, length), None))
            turn += 1
            file.add(number, ROUNDS)
    send_result("stopped")


def stop_while_locked(number: int, url: str, limit: dict[str, Any]) -> None:
    """Acquire twice; stop this process in the middle of the second call, while it holds the lock."""
    step, stops = TokenBucketStrategy.step, [False]

    def stopping_step(*arguments: Any) -> Any:
        if stops[0]:
            os.kill(os.getpid(), signal.SIGSTOP)
        return step(*arguments)

    TokenBucketStrategy.step = stopping_step  # type: ignore[assignment, method-assign]
    limiter = make_limiter(url, limit)
    taken = [limiter.sync.acquire("k")]
    wait_for_start()
    stops[0] = True
    taken.append(limiter.sync.acquire("k"))
    send_result(taken)


def fork_and_call(number: int, url: str, limit: dict[str, Any], calls: int, how: str) -> None:
    """Fork and acquire in both processes concurrently; then once more after the child has ended."""
    limiter = make_limiter(url, limit)
    limiter.sync.acquire("other")
    at_ns = wait_for_start() + 20_000_000
    context: Any = multiprocessing.get_context(how)
    here, there = context.Pipe()
    child = context.Process(
        target=_acquire_in_child, args=(there, None if how == "fork" else url, limit, at_ns, calls)
    )
    _inherited.append(limiter)
    child.start()
    if how == "spawn":
        here.recv()
    own = _acquire_at(limiter, at_ns, calls)
    childs = here.recv()
    child.join()
    send_result({"granted": own + childs, "status": child.exitcode, "after": limiter.sync.acquire("other")})


_inherited: list[BaseLimiter] = []


def _acquire_in_child(parent: Any, url: str | None, limit: dict[str, Any], at_ns: int, calls: int) -> None:
    if url is None:
        [limiter] = _inherited
    else:
        limiter = make_limiter(url, limit)
        parent.send("ready")
    parent.send(_acquire_at(limiter, at_ns, calls))


def _acquire_at(limiter: BaseLimiter, at_ns: int, calls: int) -> int:
    while time.monotonic_ns() < at_ns:
        pass
    return sum(limiter.sync.acquire("k") for _ in range(calls))


def fork_while_waiting(number: int, url: str) -> None:
    """Fork while a thread of the parent waits; the child has no waiters, so it is served."""
    limiter = make_limiter(url, {"rate": 0.001, "capacity": 1})
    limiter.sync.acquire("k")
    waiter = threading.Thread(target=limiter.sync.acquire, args=("k", 1, None))
    waiter.start()
    while "k" not in limiter._flows.wait_queue.waiters_by_key:
        time.sleep(0.001)
    wait_for_start()
    warnings.simplefilter("ignore", DeprecationWarning)  # this test forks a process with threads on purpose
    pid = os.fork()
    if not pid:
        limiter.sync.release("k")
        # a class above the parent's waiter, whose claim in the store binds other callers of its own class
        granted = limiter.sync.acquire("k", priority="interactive")
        limiter.sync.release("k")
        is_empty = not limiter._flows.wait_queue.waiters_by_key
        waited = limiter.sync.acquire("k", timeout=0.5, priority="interactive")
        os._exit(0 if granted and is_empty and waited else 1)
    _, status = os.waitpid(pid, 0)
    limiter.sync.reset("k")
    waiter.join(60)
    send_result({"child": os.waitstatus_to_exitcode(status), "parent served": not waiter.is_alive()})


def fork_under_load(number: int, url: str, forks: int) -> None:
    """Fork repeatedly while other threads use locks; every child must be able to acquire."""
    limiter = make_limiter(url, LIMITS[SLOW])
    limiter.sync.acquire("k")  # the imports of a first call must be complete before a fork
    over = threading.Event()

    def acquire_continuously() -> None:
        while not over.is_set():
            limiter.sync.acquire("k")
            limiter.sync.peek("k")

    threads = [threading.Thread(target=acquire_continuously) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for_start()
    warnings.simplefilter("ignore", DeprecationWarning)  # this test forks a process with threads on purpose
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
    send_result({"children": children})


def fork_in_event_loop(number: int, url: str) -> None:
    """Fork inside an event loop that has used a limit; both processes continue, each on its own loop."""
    limiter = make_limiter(url, {"rate": 0.001, "capacity": 20})

    async def acquire_all() -> int:
        try:
            return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(20))))
        finally:
            await limiter.aclose()

    async def parent() -> tuple[int, int]:
        await limiter.acquire("other")
        pid = os.fork()
        if not pid:
            os._exit(asyncio.run(acquire_all()))
        own = await acquire_all()
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        return own, os.waitstatus_to_exitcode(status)

    wait_for_start()
    send_result({"granted": sum(asyncio.run(parent()))})


def open_and_acquire(number: int, name: str, memory: int, calls: int) -> None:
    """Open a shared store at the same moment as other workers, and acquire."""
    wait_for_start()
    store = SharedStore(name, memory=memory, lock_timeout=5)
    limiter = BaseLimiter("20/hour", store, "tested")
    send_result({"granted": sum(limiter.sync.acquire("k") for _ in range(calls))})


def interrupt_randomly(number: int, url: str, seconds: float) -> None:
    """Acquire while a signal handler raises at random moments, as the time limits of task queues do."""

    class OutOfTimeError(Exception):
        pass

    armed = [False]

    def raise_it(*_: object) -> None:
        if armed[0]:  # only once each time
            armed[0] = False
            raise OutOfTimeError

    limiter = make_limiter(url, LIMITS[SLOW])
    signal.signal(signal.SIGALRM, raise_it)
    ends_ns, interruptions = wait_for_start() + round(seconds * 1e9), 0
    errors: list[Exception] = []  # keeps their frames alive, as futures and loggers do
    while time.monotonic_ns() < ends_ns:
        try:
            # Again every 10 ms, because an exception in a finalizer is lost.
            signal.setitimer(signal.ITIMER_REAL, 2e-5 + interruptions % 97 * 3e-6, 0.01)
            armed[0] = True
            for turn in itertools.count():
                limiter.sync.acquire("k")
                limiter.sync.peek("k")
                limiter.sync.acquire(f"k{turn % 50}")
        except OutOfTimeError as error:
            interruptions += 1
            errors.append(error)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    send_result(interruptions)
    wait_for_start()
    signal.alarm(20)  # a lock that was left behind would block without end
    send_result(all(limiter.sync.acquire(f"k{turn}") for turn in range(50)))


def acquire_as_user(number: int, uid: int, name: str, path: str) -> None:
    """Become another user, use a store of the same name, and try to list the first user's directory."""
    boot_id()  # its imports may be readable only by the first user
    os.setgid(uid)
    os.setuid(uid)
    wait_for_start()
    store = SharedStore(name, memory=8)
    limiter = BaseLimiter("5/hour", store, "tested")
    granted = sum(limiter.sync.acquire("k") for _ in range(10))
    store.close()
    try:
        listing = str(os.listdir(path))  # noqa: PTH208 - the question is whether this is allowed
    except PermissionError:
        listing = "refused"
    send_result({"granted": granted, "path": store.path, "listing": listing})


def tiny_disk(number: int, name: str, directory: str) -> None:
    """Use stores on a disk of 4 MB, and again when it is read-only. Runs in its own mount namespace."""
    from comporta.cli.doctor_shared import check_usage  # noqa: PLC0415 - only this job needs the command line

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", directory], check=True)
    shared_module.directory_path = lambda name: f"{directory}/{name}"  # type: ignore[attr-defined]
    wait_for_start()
    results: dict[str, Any] = {"too large": _problem(name, 16_384), "left behind": _names(directory)}
    store = SharedStore(name)
    limiter = BaseLimiter("2/hour", store, "tested").sync
    victim = [limiter.acquire("victim") for _ in range(3)]
    flood = sum(limiter.acquire(f"k{number}") for number in range(25_000))
    results |= {"victim": [*victim, limiter.acquire("victim")], "flood": flood}
    results |= {
        "usage": store.table.usage()._asdict(),
        "events": [each.text for each in events.latest_events()],
    }
    results["finding"] = check_usage(store.table.usage())._asdict()
    store.close()
    subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
    results |= {"read-only, new": _problem(f"{name}-new", 128), "read-only, there": _problem(name, 128)}
    send_result(results)


def _problem(name: str, memory: int) -> str:
    try:
        SharedStore(name, memory=memory).close()
    except StateUnavailableError as error:
        return str(error)
    return "none"


def _names(directory: str) -> list[str]:
    return [path.name for path in Path(directory).iterdir()]


def hold_locks(number: int, name: str, locks: list[int]) -> None:
    """Hold some locks of a table until killed."""
    store = SharedStore(name, lock_timeout=5)
    for fd, _ in store._locked.guards(set(locks)):
        fcntl.flock(fd, fcntl.LOCK_EX)
    wait_for_start()


def die_at_each_step(number: int, url: str, case: str, *, opcodes: bool) -> None:
    """Let forked children die at every step of an operation."""
    from tests.processes.kill_points import run_case  # noqa: PLC0415 - only this job needs it

    wait_for_start()
    send_result(run_case(url.removeprefix("shared://").partition("?")[0], case, opcodes=opcodes))


def report_errors(number: int, url: str, limit: dict[str, Any], errors: int) -> None:
    """Record some errors of the upstream."""
    degradation = Degradation(make_limiter(url, limit))
    wait_for_start()
    for _ in range(errors):
        degradation.sync.record_error()
    send_result({"done": True})


def acquire_on_demand(number: int, url: str, limit: dict[str, Any]) -> None:
    """Acquire once for each line of input, and report the limit in force."""
    limiter = make_limiter(url, limit)
    wait_for_start()
    while True:
        send_result({"allowed": limiter.sync.acquire(), "limit": limiter.sync.stats().limit})
        sys.stdin.readline()


def degrade_and_acquire(url: str, errors: int, number: int) -> None:
    """Record errors of one partition of a throttle; then acquire all of its capacity and of another's."""
    throttle = HierarchicalThrottle(1000, 100, per=86_400, state=url, name="tested").sync
    wait_for_start()
    for _ in range(errors):
        throttle.record_error("degraded")
    send_result({"done": True})
    wait_for_start()
    limit = throttle.current_limit("degraded")
    taken = {
        each: sum(throttle.acquire(each, timeout=0) for _ in range(15)) for each in ("degraded", "other")
    }
    send_result({"limit": limit, **taken})


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        call,
        call_concurrently,
        hold_lease,
        hammer,
        hammer_async,
        acquire_until_stopped,
        stop_while_locked,
        fork_and_call,
        fork_while_waiting,
        fork_in_event_loop,
        fork_under_load,
        open_and_acquire,
        interrupt_randomly,
        acquire_as_user,
        tiny_disk,
        hold_locks,
        die_at_each_step,
        report_errors,
        acquire_on_demand,
        degrade_and_acquire,
    )
}
