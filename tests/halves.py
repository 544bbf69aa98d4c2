"""All tests, in two processes at once: where one waits, the other computes.

``python -m tests.halves`` starts pytest twice, with the options it is given. Both find all tests; one takes
them from the front, file by file, the other from the back, until they meet. In front stand the folders that
are held to real time, so that no two of those run beside each other. Each half has servers of its own, on
ports of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from comporta.stores import known
from comporta.testing import programs

HALVES = ("front", "back")
HALF, MEETING = "COMPORTA_TESTS_HALF", "COMPORTA_TESTS_MEETING"
IN_FRONT = {"faults", "outages", "processes", "topologies"}
_END_SECONDS = 30.0


# the process that starts the two ----------------------------------------------------------------------------


def main() -> int:
    """Run both halves to their end; the status is 0 only if both ran well, and left nothing out."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with TemporaryDirectory() as meeting, without_notes():
        halves = {half: _started(half, meeting) for half in HALVES}
        try:
            _told(halves)
            statuses = [process.wait() for process in halves.values()]
        except KeyboardInterrupt:
            return 130
        finally:
            _end(halves)
        return max(map(abs, statuses)) or _left_out(Path(meeting)) or _measured()


def _told(halves: dict[str, subprocess.Popen[str]]) -> None:
    lock = threading.Lock()
    tellers = [threading.Thread(target=_tell, args=(half, halves[half], lock)) for half in halves]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()


def _started(half: str, meeting: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coverage", "run", "--parallel-mode", "-m", "pytest"]
    command += ["-p", "tests.halves", "-o", "console_output_style=count"]
    command += [*(["--color=yes"] if sys.stdout.isatty() else []), *sys.argv[1:]]
    environ = {**os.environ, HALF: half, MEETING: meeting}
    return subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # so that Ctrl-C comes to us alone, and to each of them once
    )


def _tell(half: str, process: subprocess.Popen[str], lock: threading.Lock) -> None:
    """Show each line as it comes; what it says of failures only when it has ended, in one piece."""
    assert process.stdout is not None
    held: list[str] = []
    for line in process.stdout:
        if held or ("====" in line and "test session starts" not in line):
            held.append(line)
        else:
            with lock:
                print(f"{half:>5}  {line}", end="", flush=True)  # noqa: T201 - this is what it is for
    with lock:
        print(f"\n{half}\n{''.join(held)}", flush=True)  # noqa: T201


def _end(halves: dict[str, subprocess.Popen[str]]) -> None:
    """Have who is still there end in good order, and its servers with it."""
    left = [process for process in halves.values() if process.poll() is None]
    for process in left:
        process.send_signal(signal.SIGINT)
    for process in left:
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _left_out(meeting: Path) -> int:
    """See that the two together ran each test once: their reports give what was run, and of how many."""
    reports = [(meeting / half).read_text().split() for half in HALVES]
    ran, found = sum(int(report[0]) for report in reports), {report[1] for report in reports}
    if found == {str(ran)}:
        return 0
    print(f"{ran} tests were run, {' and '.join(sorted(found))} found", file=sys.stderr)  # noqa: T201
    return 1


def _measured() -> int:
    """Put together what both measured of coverage."""
    return subprocess.run([sys.executable, "-m", "coverage", "combine", "--quiet"], check=False).returncode


@contextmanager
def without_notes() -> Iterator[None]:
    """Remove what workers of tests noted meanwhile about fleets that are gone (see stores/known.py)."""
    pattern = Path(known._path("")).name.rpartition("-")[0] + "-*"
    folder = Path(known._path("")).parent
    before = set(folder.glob(pattern))
    yield
    for note in set(folder.glob(pattern)) - before:
        note.unlink(missing_ok=True)


# in each of the two -----------------------------------------------------------------------------------------


def pytest_configure() -> None:
    """Leave every other port to the other half."""
    programs._PORTS = programs._PORTS[HALVES.index(os.environ[HALF]) :: len(HALVES)]


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run what this half takes, as pytest would."""
    if session.testsfailed:
        raise session.Interrupted(f"{session.testsfailed} errors during collection")
    ran = 0
    for item, next_item in pairwise(chain(_taken(session.items), [None])):
        assert item is not None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
        ran += 1
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    report = Path(os.environ[MEETING]) / os.environ[HALF]
    report.write_text(f"{ran} {len(session.items)}")
    return True


def _taken(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Take one file's tests after the other, from this half's end, until the other half has taken them."""
    ordered = sorted(items, key=lambda item: folder_of(item) not in IN_FRONT)
    pieces = [list(piece) for _, piece in groupby(ordered, key=lambda item: item.path)]
    numbers = range(len(pieces))
    for number in numbers if os.environ[HALF] == HALVES[0] else reversed(numbers):
        try:
            Path(os.environ[MEETING], str(number)).mkdir()
        except FileExistsError:
            return
        yield from pieces[number]


def folder_of(item: pytest.Item) -> str:
    """Return the folder of tests, or the file, that a test is in."""
    return item.path.relative_to(item.config.rootpath / "tests").parts[0]


if __name__ == "__main__":
    sys.exit(main())
