"""The folder of ``shared://``: whose it is, what may be wrong with it, and what happens when it is full."""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.processes.fleet import Worker, new_name, remove, started, together

from comporta import BaseLimiter, LimitGroup, LimitKey, StateFullError, StateUnavailableError
from comporta.clock import MONOTONIC, Clock
from comporta.stores import folder
from comporta.stores.folder import TABLE, boot_id, path_of
from comporta.stores.records import Read, Write
from comporta.stores.shared import SharedStore
from comporta.stores.table import HEADER_BYTES, MAGIC, header
from comporta.testing import ManualClock

NOBODY = 65534
SMALL = 128
"""Keys for which a table has a single bucket, so that 128 states fill it."""

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
def name() -> Iterator[str]:
    made = new_name()
    yield made
    remove(made)
    assert not list(Path(path_of(made)).parent.glob(f"*{made}*")), "something was left behind"


@contextmanager
def opened(name: str, clock: Clock = MONOTONIC) -> Iterator[SharedStore]:
    store = SharedStore(name, clock, SMALL, lock_timeout=5)
    yield store
    store.close()


def made(name: str) -> Path:
    """Make a folder in good order and return its path."""
    with opened(name) as store:
        return Path(store.path)


# whose it is ------------------------------------------------------------------------------------------------


def test_folder__new__is_closed_to_other_users(name: str) -> None:
    path = made(name)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}


@root_only
def test_folder__of_another_user__is_refused_and_the_error_says_whose(name: str) -> None:
    os.chown(made(name), NOBODY, NOBODY)
    with pytest.raises(StateUnavailableError, match=f"belongs to user {NOBODY}, not to 0"), opened(name):
        pass


def test_folder__open_to_others__is_refused_and_the_error_says_why(name: str) -> None:
    made(name).chmod(0o755)
    with pytest.raises(StateUnavailableError, match="has mode 0755, others could change it"), opened(name):
        pass


def test_folder__a_symbolic_link__is_refused_and_left_alone(name: str, tmp_path: Path) -> None:
    path = made(name)
    elsewhere = shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    with pytest.raises(StateUnavailableError, match="symbolic link"), opened(name):
        pass
    assert path.is_symlink()


def test_folder__a_file_of_that_name__is_refused_and_left_alone(name: str) -> None:
    path = Path(path_of(name))
    path.write_text("mine")
    try:
        with pytest.raises(StateUnavailableError, match=f"cannot open {path}"), opened(name):
            pass
        assert path.read_text() == "mine"
    finally:
        path.unlink()


@root_only
def test_two_users__same_name__have_a_state_each_and_cannot_see_the_other(name: str) -> None:
    with opened(name) as store, Worker("as_user", number=0, uid=NOBODY, name=name, path=store.path) as worker:
        limiter = BaseLimiter("5/hour", store, "tested")
        assert sum(limiter.sync.acquire("k") for _ in range(10)) == 5
        answer = worker.ready().go().answer()
    shutil.rmtree(answer["path"])
    assert answer["path"] != store.path
    assert answer["granted"] == 5
    assert answer["seen"] == "refused"


# what may be wrong with it ----------------------------------------------------------------------------------


def rewritten(path: Path, start: bytes) -> None:
    with (path / TABLE).open("r+b") as file:
        file.write(start)


def test_folder__from_before_a_reboot__starts_anew(name: str) -> None:
    with opened(name) as store:
        BaseLimiter("1/hour", store, "tested").sync.acquire("k")
        path = Path(store.path)
    rewritten(path, header(SMALL, "an earlier start"))
    with opened(name) as store:
        assert BaseLimiter("1/hour", store, "tested").sync.acquire("k")


@pytest.mark.parametrize("round_", range(2))
def test_folder__from_before_a_reboot_opened_by_8_processes_at_once__is_replaced_once(
    name: str, round_: int
) -> None:
    rewritten(made(name), header(SMALL, "an earlier start"))
    with started(8, "open_and_take", name=name, keys=SMALL, calls=5) as workers:
        answers = together(workers)
    assert sum(answer["granted"] for answer in answers) == 20


def test_folder__from_before_a_reboot_put_away_by_another_while_it_is_opened__is_made_anew(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between opening the folder and its files, in which another process may remove both."""
    path, found = made(name), folder._found

    def put_away_first(fd: int, opened_path: str) -> tuple[int, str]:
        monkeypatch.setattr(folder, "_found", found)
        shutil.rmtree(path)
        return found(fd, opened_path)

    rewritten(path, header(SMALL, "an earlier start"))
    monkeypatch.setattr(folder, "_found", put_away_first)
    with opened(name) as store:
        assert BaseLimiter("1/hour", store, "tested").sync.acquire("k")


def test_folder__not_there_yet_opened_by_8_processes_at_once__is_made_once(name: str) -> None:
    with started(8, "open_and_take", name=name, keys=SMALL, calls=5) as workers:
        answers = together(workers)
    assert sum(answer["granted"] for answer in answers) == 20


def truncate(path: Path, size: int) -> None:
    os.truncate(path / TABLE, size)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: rewritten(path, os.urandom(HEADER_BYTES)), "is not a comporta state file"),
        (lambda path: rewritten(path, bytes(HEADER_BYTES)), "is not a comporta state file"),
        (lambda path: truncate(path, 0), "is not a comporta state file"),
        (lambda path: truncate(path, 20), "is not a comporta state file"),
        (lambda path: truncate(path, HEADER_BYTES), f"has {HEADER_BYTES} bytes, .* are needed"),
        (lambda path: truncate(path, 1_000_000), "has 1000000 bytes, .* are needed"),
        (lambda path: rewritten(path, MAGIC + b"\2\0\0\0"), "has layout version 2, this comporta reads 1"),
        (lambda path: rewritten(path, header(0, boot_id())), "remove"),
        (lambda path: rewritten(path, header(2**32 - 1, boot_id())), "remove"),
        (lambda path: (path / TABLE).unlink(), "table"),
        (lambda path: (path / "lock.07").unlink(), "lock.07"),
        (lambda path: (path / "lock.00").unlink(), "lock.00"),
    ],
)
def test_table__spoiled__is_refused_and_the_error_says_what_to_do(
    name: str, spoil: Callable[[Path], object], why: str
) -> None:
    path = made(name)
    spoil(path)
    with pytest.raises(StateUnavailableError, match=why) as caught, opened(name):
        pass
    assert str(path) in str(caught.value)


# no room ----------------------------------------------------------------------------------------------------


def fill(limiter: BaseLimiter) -> int:
    """Use new keys until there is no room for one more; return how many there was room for."""
    for number in range(10 * SMALL):
        try:
            limiter.sync.acquire(f"k{number}")
        except StateFullError:
            return number
    raise AssertionError("it never became full")


def test_full_table__new_key__is_refused_and_live_ones_keep_their_state(name: str) -> None:
    with opened(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        assert fill(limiter) == SMALL
        with pytest.raises(StateFullError, match=r"no room for 'rate_limiter:tested:new'.*\?keys="):
            limiter.sync.acquire("new")
        with pytest.raises(StateFullError):
            limiter.sync.acquire(LimitKey("a", "new"))
        assert limiter.sync.peek("new").remaining == 2
        for number in range(SMALL):
            assert [limiter.sync.acquire(f"k{number}") for _ in range(2)] == [True, False]


def test_full_table__states_that_have_ended__make_room_for_others(name: str) -> None:
    clock = ManualClock()
    with opened(name, clock) as store, opened(name, clock) as other:
        limiter, elsewhere = (BaseLimiter("2/hour", each, "tested") for each in (store, other))
        fill(limiter)
        assert elsewhere.sync.acquire("k0")
        clock.advance(3600)
        assert fill(BaseLimiter("2/hour", store, "others")) == SMALL
        # the slots of the first limiter's keys are gone, and both processes notice
        for each in (limiter, elsewhere):
            with pytest.raises(StateFullError):
                each.sync.acquire("k0")
        clock.advance(3600)
        assert [each.sync.acquire("k0") for each in (limiter, elsewhere, limiter)] == [True, True, False]


def test_full_table__key_that_is_freed__makes_room_for_another(name: str) -> None:
    with opened(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        fill(limiter)
        limiter.sync.reset("k5")
        assert limiter.sync.acquire("new")
        with pytest.raises(StateFullError):
            limiter.sync.acquire("k5")


def test_full_table__group_with_room_for_one_of_two__charges_neither(name: str) -> None:
    with opened(name) as store:
        limiter = BaseLimiter("2/hour", store, "tested")
        fill(limiter)
        limiter.sync.reset("k5")
        first, second = (BaseLimiter("5/hour", store, each) for each in ("first", "second"))
        both = LimitGroup(first, second)
        with pytest.raises(StateFullError):
            both.sync.acquire(["x", "x"])
        assert first.sync.peek("x").remaining == 5
        assert limiter.sync.acquire("one more")
        with pytest.raises(StateFullError):
            LimitGroup(limiter, first).sync.acquire(["k7", "x"])
        assert limiter.sync.peek("k7").remaining == 1


def test_full_table__records__are_refused_and_live_ones_stay_whole(name: str) -> None:
    with opened(name) as store:
        values = ((f"r{number}", b"%d" % number) for number in range(10 * SMALL))
        with pytest.raises(StateFullError):
            deque(store.apply(Write("records", key, value, None)) for key, value in values)
        entries = store.entries("records")
        assert entries == {f"r{number}": b"%d" % number for number in range(len(entries))}
        assert len(entries) >= 100
        assert store.apply(Write("records", "r1", b"new", None))
        assert store.apply(Read("records", "r1")) == b"new"


@pytest.mark.parametrize("length", [200, 201, 511, 512, 513, 10_240])
@pytest.mark.parametrize("letter", ["k", "é", "🚪", "\0", "\ud800"])
def test_long_key__counts_for_itself_alone(name: str, letter: str, length: int) -> None:
    with opened(name) as store, opened(name) as other:
        limiter, elsewhere = (BaseLimiter("3/hour", each, "tested") for each in (store, other))
        key, neighbour = letter * length, letter * (length - 1) + "x"
        assert limiter.sync.acquire(key)
        assert elsewhere.sync.acquire(key)
        assert [limiter.sync.peek(each).remaining for each in (key, neighbour)] == [1, 3]
        limiter.sync.reset(key)
        assert elsewhere.sync.peek(key).remaining == 3


# no space, no permission ------------------------------------------------------------------------------------


def in_own_mounts() -> list[str]:
    """Return the command that gives a process mounts of its own, which end with it."""
    return (
        ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    )


def test_disk__full__is_an_error_that_says_how_much_is_needed_and_leaves_nothing(
    name: str, tmp_path: Path
) -> None:
    with Worker("tiny_disk", prefix=in_own_mounts(), number=0, name=name, folder=str(tmp_path)) as worker:
        answer = worker.ready().go().answer()
    assert "No space left on device: 12 MB are needed; ask for fewer with ?keys=" in answer["too large"]
    assert answer["left behind"] == []
    assert answer["small enough"] is True


def test_disk__read_only__is_an_error_that_says_so(name: str, tmp_path: Path) -> None:
    with Worker("tiny_disk", prefix=in_own_mounts(), number=0, name=name, folder=str(tmp_path)) as worker:
        answer = worker.ready().go().answer()
    assert "Read-only file system" in answer["read-only, new"]
    assert "Read-only file system" in answer["read-only, there"]
