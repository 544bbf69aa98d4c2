"""The runtime: what installing another one replaces, and what a process has once."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from comporta import BaseLimiter, events
from comporta.breaker.admission import worker_name
from comporta.breaker.registry import forget_circuit_breakers, get_circuit_breaker
from comporta.clock import MONOTONIC
from comporta.jitter import fraction
from comporta.limits.concurrency.permits import new_permit
from comporta.limits.leases.scheduler import SCHEDULER
from comporta.runtime import RUNTIME, PerProcess, Runtime, at_exit, follow, install, run_exit_functions
from comporta.stores.failover import heartbeat
from comporta.stores.failover.worker_count import WorkerCount
from comporta.stores.failover.worker_count_file import WORKER_COUNT_FILES, WorkerCountFiles
from comporta.stores.failover.worker_registry import Worker
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import open_store
from comporta.threads import AutoResetEvent, BackgroundThread, run_elsewhere

NAMES = sorted(Runtime.__abstractmethods__)


class VirtualLock:
    """A lock whose wait lets the queued threads run, and then the time pass."""

    def __init__(self, runtime: VirtualRuntime) -> None:
        self._runtime = runtime
        self._is_locked = False

    def acquire(self, *, timeout: float = -1) -> bool:
        if self._is_locked:
            self._runtime.run_threads()
        if self._is_locked:
            self._runtime.seconds += timeout
            return False
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False

    def locked(self) -> bool:
        return self._is_locked


class VirtualRuntime(Runtime):
    """Two simulated processes, 0 and 1, on one virtual clock; threads run when something waits."""

    def __init__(self) -> None:
        self.process = 0
        self.seconds = 1000.0
        self.queued: deque[Callable[[], object]] = deque()
        self.objects: list[dict[PerProcess[Any], Any]] = [{}, {}]

    def monotonic_ns(self) -> int:
        return round(self.seconds * 1e9)

    def monotonic(self) -> float:
        return self.seconds

    def unix_ns(self) -> int:
        return round((1_700_000_000 + self.seconds) * 1e9)

    def unix_time(self) -> float:
        return 1_700_000_000 + self.seconds

    def random_bytes(self, size: int) -> bytes:
        return bytes([self.process]) * size

    def pid(self) -> int:
        return 100 + self.process

    def host(self) -> str:
        return f"host-{self.process}"

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def waiting_lock(self) -> VirtualLock:
        return VirtualLock(self)

    def waiting_queue(self) -> SimpleQueue[Any]:
        return SimpleQueue()

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        self.queued.append(work)

    def start_bare_thread(self, work: Callable[[], object]) -> None:
        self.queued.append(work)

    def call_without_signals(self, work: Callable[[], object]) -> bool:
        work()
        return True

    def process_objects(self) -> dict[PerProcess[Any], Any]:
        return self.objects[self.process]

    def run_threads(self) -> None:
        while self.queued:
            self.queued.popleft()()

    @contextmanager
    def other_process(self) -> Iterator[None]:
        self.process = 1
        yield
        self.process = 0


@pytest.fixture
def virtual() -> Iterator[VirtualRuntime]:
    runtime = VirtualRuntime()
    with install(runtime):
        yield runtime


def test_runtime__by_default__is_the_machine() -> None:
    assert MONOTONIC.now_ns is time.monotonic_ns
    assert RUNTIME.monotonic is time.monotonic
    assert RUNTIME.random_bytes is os.urandom
    assert abs(RUNTIME.unix_ns() / 1e9 - time.time()) < 60
    assert abs(RUNTIME.unix_time() - time.time()) < 60
    assert abs(MONOTONIC.unix_offset_us() / 1e6 + time.monotonic() - time.time()) < 60
    assert (RUNTIME.host(), RUNTIME.pid()) == (os.uname().nodename[:64], os.getpid())


def test_install__another_runtime__replaces_every_function_until_the_end() -> None:
    other = VirtualRuntime()
    before = [getattr(RUNTIME, name) for name in NAMES]
    nested = VirtualRuntime()
    nested.seconds = 5.0
    with install(other):
        assert not {getattr(RUNTIME, name) for name in NAMES} & set(before)
        assert RUNTIME.monotonic() == other.seconds
        with install(nested):
            assert RUNTIME.monotonic() == 5.0
        assert RUNTIME.monotonic() == other.seconds
    assert [getattr(RUNTIME, name) for name in NAMES] == before


def test_install__other_threads_and_later__have_the_machine() -> None:
    other = VirtualRuntime()
    with install(other):
        monotonic = RUNTIME.monotonic
        readings: list[float] = []
        thread = Thread(target=lambda: readings.append(RUNTIME.monotonic()))
        thread.start()
        thread.join()
        assert monotonic() == other.seconds
    assert time.monotonic() - readings[0] < 60
    assert time.monotonic() - monotonic() < 60


def test_install__block_raises__restores_the_machine() -> None:
    with pytest.raises(KeyError), install(VirtualRuntime()):
        raise KeyError
    assert MONOTONIC.now_ns is time.monotonic_ns


def test_install__objects_created_inside__read_its_clock(virtual: VirtualRuntime) -> None:
    limiter = BaseLimiter("1/s", MemoryStore(), "tested")
    assert limiter.store.clock is MONOTONIC
    assert limiter.sync.acquire()
    assert not limiter.sync.acquire()
    assert limiter.sync.acquire(timeout=5)
    assert virtual.seconds == pytest.approx(1001.0)
    MONOTONIC.sleep(2)
    assert virtual.seconds == pytest.approx(1003.0)
    assert MONOTONIC.unix_offset_us() == 1_700_000_000_000_000


def test_install__identity_and_randomness__are_those_of_the_process(
    virtual: VirtualRuntime,
) -> None:
    assert (worker_name(), str(Worker.new())) == ("host-0:100", f"host-0:100:1700001000:{0:016x}")
    with virtual.other_process():
        assert worker_name() == "host-1:101"
        assert new_permit() == ("01" * 8, "host-1:101")
        assert fraction() > 0
    assert fraction() == 0


def test_install__background_thread__runs_when_something_waits(virtual: VirtualRuntime) -> None:
    ran: list[str] = []
    thread = BackgroundThread()
    assert thread.start(ran.append, "started", name="tested")
    assert (thread.is_alive(), ran) == (True, [])
    thread.stop(1)
    assert (thread.is_alive(), ran) == (False, ["started"])
    run_elsewhere(ran.append, "elsewhere")
    assert not AutoResetEvent().is_set()
    virtual.run_threads()
    assert ran == ["started", "elsewhere"]
    assert virtual.seconds == 1000.0


def test_event__simulated_wait__takes_virtual_time(virtual: VirtualRuntime) -> None:
    event = AutoResetEvent()
    assert not event.wait(0.5)
    event.set()
    event.set()
    assert event.wait(0.5)
    assert virtual.seconds == 1000.5


def test_process_objects__two_simulated_processes__have_their_own(virtual: VirtualRuntime) -> None:
    forget_circuit_breakers()
    first = (SCHEDULER.get(), open_store("memory://tested"), heartbeat._running.get())
    events.publish("tested", "first", "in process 0", "info")
    assert first == (SCHEDULER.get(), open_store("memory://tested"), heartbeat._running.get())
    with virtual.other_process():
        second = (SCHEDULER.get(), open_store("memory://tested"), heartbeat._running.get())
        assert not [True for one, other in zip(first, second, strict=True) if one is other]
        assert not events.latest_events()
    assert [event.source for event in events.latest_events()] == ["first"]


def test_named_breakers__two_simulated_processes__are_not_shared(
    virtual: VirtualRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USE_REDIS_CIRCUIT_BREAKER", "false")
    first = get_circuit_breaker("tested")
    with virtual.other_process():
        assert get_circuit_breaker("tested") is not first
    assert get_circuit_breaker("tested") is first


def test_process_objects__put_there_before__are_used(virtual: VirtualRuntime) -> None:
    saved = {"redis://tested": 7}
    files = WorkerCountFiles()
    files.load, files.save = saved.__getitem__, saved.__setitem__  # type: ignore[assignment]
    virtual.objects[0][WORKER_COUNT_FILES] = files
    count = WorkerCount("redis://tested")
    assert count.value == 7
    count.record(9)
    count.expire()
    assert saved == {"redis://tested": 9}


def test_process_objects__real_process__exist_since_the_import() -> None:
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    tested = PerProcess(make)
    assert (len(made), tested.get() is made[0], tested.get() is made[0]) == (1, True, True)
    del RUNTIME.process_objects()[tested]


def test_exit_functions__simulated_process_exits__run_the_latest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[int] = []
    monkeypatch.setattr("comporta.runtime._exit_functions", [])
    monkeypatch.setattr("atexit.register", print)
    at_exit(lambda: ran.append(1))
    at_exit(lambda: ran.append(2))
    run_exit_functions()
    assert ran == [2, 1]


def test_follow__runtime_installed__is_called_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.runtime._followers", [])
    adopted: list[object] = []
    follow(lambda: adopted.append(RUNTIME.monotonic))
    with install(VirtualRuntime()):
        installed = RUNTIME.monotonic
    assert adopted == [time.monotonic, installed, time.monotonic]


def test_sleep__real_machine__returns() -> None:
    RUNTIME.sleep(0)
    MONOTONIC.sleep(0)
