"""Events and background threads, interrupted or not, and cleanup of destroyed coroutines."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator

import pytest

from comporta import threads
from comporta.threads import AutoResetEvent, BackgroundThread, is_from_destruction, run_cleanup, snapshot

WAIT_SECONDS_MAX = 120.0


def test_event__set_before_a_thread_waits__wakes_it_once() -> None:
    event = AutoResetEvent()
    event.set()
    event.set()
    assert event.is_set()
    assert event.wait(0)
    assert not event.is_set()
    assert not event.wait(0)
    assert not event.wait(-1)


def test_event__set_by_another_thread__wakes_the_waiting_one() -> None:
    event = AutoResetEvent()
    threading.Timer(0.01, event.set).start()
    assert event.wait()


@pytest.mark.parametrize("timeout", [WAIT_SECONDS_MAX, None])
def test_thread__stopped__wakes_up_and_ends(timeout: float | None) -> None:
    thread = BackgroundThread()
    assert thread.is_alive(), "a thread that is not started yet counts as alive"

    def wait_for_stop() -> None:
        while not thread.stop_requested:
            thread.wake.wait()

    assert thread.start(wait_for_stop, name="tested")
    thread.stop(timeout)
    assert not thread.is_alive()
    thread.stop(timeout)


def test_thread__never_started__stop_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = BackgroundThread()
    thread.stop(1e9)
    monkeypatch.setattr("comporta.threads.START_SECONDS_MAX", 0)
    assert not thread.is_alive()


@pytest.mark.parametrize("place", ["threading.Thread.start", "comporta.runtime.start_new_thread"])
def test_start__no_thread_available__returns_false(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(place, fail_to_start)
    assert BackgroundThread().start(print, name="tested") is False


INTERRUPTED = """
import itertools, signal, sys, time
from comporta.threads import BackgroundThread

class OutOfTimeError(Exception):
    pass

armed = [False]

def interrupt(*_):
    if armed[0]:  # once for each time it is armed
        armed[0] = False
        raise OutOfTimeError

def work(thread):
    while not thread.stop_requested:
        thread.wake.wait()

signal.signal(signal.SIGALRM, interrupt)
started = []
for turn in range(300):
    thread = BackgroundThread()
    started.append(thread)
    try:
        # again every 10 ms: an exception that is raised in a finalizer is lost
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + turn % 97 * 3e-6, 0.01)
        armed[0] = True
        thread.start(work, thread, name="tested")
        for _ in itertools.count():
            thread.wake.set()
    except OutOfTimeError:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
for thread in started:
    thread.stop(20)
sys.exit(any(thread._running for thread in started))
"""


def test_thread__started_and_woken_while_a_handler_raises_at_any_moment__never_hangs() -> None:
    """In a separate process: an interrupt could leave a lock of the coverage tracer locked."""
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=120)


def cleanup_generator(event: AutoResetEvent, lock: threading.Lock) -> Generator[None]:
    def set_under_lock() -> None:
        with lock:
            event.set()

    try:
        yield
    finally:
        run_cleanup(set_under_lock)


class ChangedDeque(deque[int]):
    """A deque that another thread changes during the first copy, as can happen without the GIL."""

    is_changed = False

    def copy(self) -> ChangedDeque:
        if not self.is_changed:
            self.is_changed = True
            self.append(4)
            raise RuntimeError("deque mutated during iteration")
        return self


def test_snapshot__changed_during_the_copy__is_taken_again() -> None:
    assert snapshot(ChangedDeque([1, 2, 3])) == [1, 2, 3, 4]


def test_run_cleanup__at_an_ordinary_end__runs_at_once() -> None:
    event = AutoResetEvent()
    assert list(cleanup_generator(event, threading.Lock())) == [None]
    assert event.is_set()


def test_run_cleanup__destroyed_by_the_holder_of_its_lock__runs_when_the_lock_is_free() -> None:
    event, lock = AutoResetEvent(), threading.Lock()
    destroyed = cleanup_generator(event, lock)
    next(destroyed)
    with lock:
        destroyed.close()
        assert not event.is_set()
    assert event.wait(WAIT_SECONDS_MAX)


def test_run_cleanup__another_thread_runs_cleanups__leaves_the_work_to_it() -> None:
    events = [AutoResetEvent(), AutoResetEvent()]
    with threads._DEFERRED.get()._lock:
        first = cleanup_generator(events[0], threading.Lock())
        next(first)
        first.close()
        assert not events[0].is_set()
    second = cleanup_generator(events[1], threading.Lock())
    next(second)
    second.close()
    assert all(event.wait(WAIT_SECONDS_MAX) for event in events)


def test_coroutines__destroyed_by_a_holder_of_every_lock__block_no_other_thread() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.abandoned_coroutines"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_event__thread_module_patched_after_the_import__says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("comporta.runtime.allocate_lock", object)
    with pytest.raises(RuntimeError, match=r"call gevent\.monkey\.patch_all\(\) before the first import"):
        AutoResetEvent()


def test_is_from_destruction__long_chain_of_contexts__looks_at_a_bounded_part() -> None:
    error: BaseException = GeneratorExit()
    for _ in range(20):
        following = OSError()
        following.__context__ = error
        error = following
    assert not is_from_destruction(error)
    assert is_from_destruction(GeneratorExit())
    assert not is_from_destruction(None)
