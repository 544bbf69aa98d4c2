"""Bells and runs: what a thread can be woken by and started with, interrupted or not."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Generator

import pytest

from comporta import threads
from comporta.threads import Bell, Run, clear_up

PATIENCE_SECONDS = 120.0


def test_bell__rung_before_anybody_waits__is_heard_once() -> None:
    bell = Bell()
    bell.set()
    bell.set()
    assert bell.is_set()
    assert bell.wait(0)
    assert not bell.is_set()
    assert not bell.wait(0)
    assert not bell.wait(-1)


def test_bell__rung_by_another_thread__wakes_who_waits() -> None:
    bell = Bell()
    threading.Timer(0.01, bell.set).start()
    assert bell.wait()


def test_run__told_to_end__is_woken_and_over() -> None:
    run = Run()
    assert run.lives(), "about to be started"
    assert run.start(lambda: [run.wake.wait() for _ in iter(lambda: run.over, True)], name="tested")
    run.end(PATIENCE_SECONDS)
    assert not run.lives()
    run.end(PATIENCE_SECONDS)


def test_run__never_started__is_not_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    run.end(1e9)
    monkeypatch.setattr("comporta.threads._STARTING_SECONDS", 0)
    assert not run.lives()


@pytest.mark.parametrize("place", ["threading.Thread.start", "comporta.threads.start_new_thread"])
def test_run__no_thread_to_be_had__says_so(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(place, none_left)
    assert Run().start(print, name="tested") is False


INTERRUPTED = """
import itertools, signal, sys, time
from comporta.threads import Run

class OutOfTimeError(Exception):
    pass

armed = [False]

def raise_it(*_):
    if armed[0]:  # once for each time it is armed
        armed[0] = False
        raise OutOfTimeError

def work(run):
    while not run.over:
        run.wake.wait()

signal.signal(signal.SIGALRM, raise_it)
runs = []
for turn in range(300):
    run = Run()
    runs.append(run)
    try:
        # again every 10 ms: what is raised in a finalizer is lost
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + turn % 97 * 3e-6, 0.01)
        armed[0] = True
        run.start(work, run, name="tested")
        for _ in itertools.count():
            run.wake.set()
    except OutOfTimeError:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
for run in runs:
    run.end(20)
sys.exit(any(run._running for run in runs))
"""


def test_run__started_and_woken_while_a_handler_raises_at_any_moment__never_hangs() -> None:
    """In a process of its own: what measures coverage has a lock that would be left behind."""
    subprocess.run([sys.executable, "-c", INTERRUPTED], check=True, timeout=120)


def waiting(bell: Bell, lock: threading.Lock) -> Generator[None]:
    def done() -> None:
        with lock:
            bell.set()

    try:
        yield
    finally:
        clear_up(done)


def test_clear_up__at_an_ordinary_end__is_done_at_once() -> None:
    bell = Bell()
    assert list(waiting(bell, threading.Lock())) == [None]
    assert bell.is_set()


def test_clear_up__of_what_is_thrown_away_by_who_holds_the_lock__is_done_when_it_is_free() -> None:
    bell, lock = Bell(), threading.Lock()
    thrown_away = waiting(bell, lock)
    next(thrown_away)
    with lock:
        thrown_away.close()
        assert not bell.is_set()
    assert bell.wait(PATIENCE_SECONDS)


def test_clear_up__while_somebody_does__is_left_to_them() -> None:
    bells = [Bell(), Bell()]
    with threads._clearing:
        first = waiting(bells[0], threading.Lock())
        next(first)
        first.close()
        assert not bells[0].is_set()
    second = waiting(bells[1], threading.Lock())
    next(second)
    second.close()
    assert all(bell.wait(PATIENCE_SECONDS) for bell in bells)


def test_coroutines__thrown_away_by_who_holds_every_lock__hold_up_nobody() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "tests.thrown_away"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr[-4000:]
