"""Threads that do what blocks, and keep no program from ending."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from comporta.pipeline import hands
from comporta.pipeline.hands import Hands

PATIENCE_SECONDS = 120.0

_HANGS = """
import threading
from comporta import Pipeline

def step(item):
    print("begun", flush=True)
    threading.Event().wait()

print(Pipeline([1], step).sync.run().ended, flush=True)
"""


_OPENS = """
import threading
from comporta import Pipeline

class Sink:
    def open(self):
        print("begun", flush=True)
        threading.Event().wait()

    def write(self, rows): ...
    def close(self): ...

print(Pipeline([1], lambda item: {"id": item}, Sink()).sync.run().ended, flush=True)
"""


def test_hands__more_work_than_threads__is_done_by_so_many() -> None:
    async def main() -> set[str]:
        few = Hands(2, "few")
        names = await asyncio.gather(*(few.do(_named) for _ in range(20)))
        few.close()
        return set(names)

    def _named() -> str:
        time.sleep(0.001)
        return str(threading.get_ident())

    assert 1 <= len(asyncio.run(main())) <= 2


def test_hands__one_after_another__need_one_thread() -> None:
    async def main() -> set[int]:
        many = Hands(100, "many")
        found = set()
        for _ in range(20):
            found.add(await many.do(threading.get_ident))
            await asyncio.sleep(0.01)  # it is free a moment after it has answered
        many.close()
        return found

    assert len(asyncio.run(main())) < 10


def test_hands__work_that_fails__is_its_error() -> None:
    async def main() -> None:
        one = Hands(1, "one")
        with pytest.raises(ZeroDivisionError):
            await one.do(lambda: 1 // 0)
        assert await one.do(lambda: 7) == 7
        one.close()

    asyncio.run(main())


def test_hands__cancelled_in_line__is_not_done() -> None:
    async def main() -> list[int]:
        one, gate = Hands(1, "one"), threading.Event()
        done: list[int] = []
        first = one.do(lambda: gate.wait(PATIENCE_SECONDS))
        second = one.do(lambda: done.append(2))
        third = one.do(lambda: done.append(3))
        second.cancel()
        await asyncio.sleep(0)  # the cancelling is passed on
        gate.set()
        await asyncio.gather(first, third)
        one.close()
        return done

    assert asyncio.run(main()) == [3]


def test_hands__no_thread_can_be_had__is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRun:
        def start(self, *_: object, name: str) -> bool:
            return name == ""

    async def main() -> None:
        one = Hands(1, "one")
        with monkeypatch.context() as changed:
            changed.setattr(hands, "Run", NoRun)
            with pytest.raises(RuntimeError, match="no thread can be had for one"):
                await one.do(lambda: 7)
        assert await one.do(lambda: 7) == 7
        one.close()

    asyncio.run(main())


@pytest.mark.parametrize("program", [_HANGS, _OPENS], ids=["step", "sink"])
def test_stop__plain_step_or_opening_of_a_sink_hangs__the_program_ends_all_the_same(program: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        for seconds in (2, 20):  # two that come at once would be one
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        try:
            told, _ = process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            process.kill()
    assert (told, process.returncode) == (b"stopped\n", 0)
