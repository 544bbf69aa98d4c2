"""The checkpoint file: what it stores, that it is durable, and its lock."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from comporta import Pipeline
from comporta.errors import CheckpointError
from comporta.pipeline.run.checkpoint import Checkpoint, CheckpointState
from comporta.pipeline.run.offsets import ConfirmedOffsets

SOURCE = {"kind": "lines", "path": "/x", "size_bytes": 7}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "run.checkpoint")


def test_load__no_file__returns_an_empty_state(checkpoint: Checkpoint) -> None:
    state = checkpoint.load(SOURCE)
    assert (state.source, len(state.confirmed), state.complete) == (SOURCE, 0, False)


def test_save__loaded_again__is_equal(checkpoint: Checkpoint) -> None:
    saved = CheckpointState(SOURCE, ConfirmedOffsets(5, [(7, 9), (12, 13)]), written=6, dead=2, complete=True)
    saved.output_end = 700
    checkpoint.save(saved)
    loaded = checkpoint.load(SOURCE)
    assert (loaded.run, loaded.output_end) == (saved.run, 700)
    assert (loaded.confirmed.low_watermark, loaded.confirmed.ranges()) == (5, [(7, 9), (12, 13)])
    assert (loaded.written, loaded.dead, loaded.complete) == (6, 2, True)
    assert [path.name for path in checkpoint.path.parent.iterdir()] == ["run.checkpoint"]


def test_load__other_source__names_the_difference(checkpoint: Checkpoint) -> None:
    checkpoint.save(CheckpointState(SOURCE))
    with pytest.raises(CheckpointError, match=r"size_bytes was 7, is 8\. Resume the run as it was"):
        checkpoint.load({**SOURCE, "size_bytes": 8})
    with pytest.raises(CheckpointError, match="begins was None, is 'ab'"):
        checkpoint.load({**SOURCE, "begins": "ab"})


FILE: dict[str, Any] = {
    "version": 2,
    "source": {},
    "done_below": 0,
    "done_above": [],
    "written": 0,
    "dead": 0,
    "complete": False,
    "run": "0123456789abcdef",
    "output_end": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 100_000,
        json.dumps({"version": 1}),
        *(
            json.dumps(FILE | wrong)
            for wrong in (
                {"done_below": -1},
                {"done_below": True},
                {"done_above": [[0, 2**53 + 1]]},
                {"done_above": [[0, 2**52]]},
                {"done_above": [[1]]},
                {"dead": "x"},
                {"source": 5},
                {"run": "short"},
                {"run": "0123456789abcde/"},
                {"output_end": -1},
            )
        ),
    ],
)
def test_load__corrupt_file__is_a_checkpoint_error(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.path.write_text(text)
    with pytest.raises(CheckpointError, match="checkpoint file is corrupt"):
        checkpoint.load({})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"version": 3}, "version must be 2, got 3"),
        ({"written": -1}, "written must be 0 to 9007199254740992, got -1"),
        ({"dead": "x"}, "dead must be an int, got 'x'"),
        ({"output_end": 2**53 + 1}, "output_end must be 0 to 9007199254740992, got 9007199254740993"),
        ({"done_below": True}, "done_below must be an int, got True"),
        ({"done_above": [[-1, 5]]}, "done_above must be 0 to 9007199254740992, got -1"),
        ({"done_above": [[1, -5]]}, "done_above must be 0 to 9007199254740992, got -5"),
        ({"done_above": [[0, 2**52]]}, "done_above must hold at most 10000000 positions, got more"),
        ({"run": "short"}, "run must be 16 letters and digits, got 'short'"),
    ],
)
def test_load__corrupt_field__is_named_with_its_value(
    checkpoint: Checkpoint, wrong: dict[str, Any], message: str
) -> None:
    checkpoint.path.write_text(json.dumps(FILE | wrong))
    with pytest.raises(CheckpointError) as raised:
        checkpoint.load({})
    assert f"writes it: {message}); remove it" in str(raised.value)


def test_load__missing_field__is_named(checkpoint: Checkpoint) -> None:
    checkpoint.path.write_text(json.dumps({"version": 2}))
    with pytest.raises(CheckpointError, match=r"writes it: the field 'source' is missing\); remove it"):
        checkpoint.load({})


def test_load__largest_numbers__are_allowed(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.run.checkpoint._ABOVE_POSITIONS_MAX", 3)
    checkpoint.path.write_text(json.dumps(FILE | {"written": 2**53, "done_above": [[2, 5], [7, 7]]}))
    state = checkpoint.load({})
    assert (state.written, state.confirmed.ranges()) == (2**53, [(2, 5)])
    checkpoint.path.write_text(json.dumps(FILE | {"done_above": [[2, 5], [7, 8]]}))
    with pytest.raises(CheckpointError, match="done_above must hold at most 3 positions"):
        checkpoint.load({})


def test_copy__run_goes_on__keeps_its_offsets() -> None:
    state = CheckpointState(SOURCE, ConfirmedOffsets(5, []))
    copied = state.copy()
    assert (copied.run, copied.confirmed.low_watermark) == (state.run, 5)
    assert copied.confirmed is not state.confirmed


def test_locked__lock_file__is_beside_the_checkpoint_and_private(checkpoint: Checkpoint) -> None:
    assert checkpoint.journal_path.name == "run.checkpoint.journal"
    with checkpoint.locked():
        [lock] = checkpoint.path.parent.iterdir()
        assert (lock.name, lock.stat().st_mode & 0o777) == ("run.checkpoint.lock", 0o600)


def test_load__unreadable_file__is_a_checkpoint_error(checkpoint: Checkpoint) -> None:
    checkpoint.path.mkdir()
    with pytest.raises(CheckpointError, match="cannot read the checkpoint"):
        checkpoint.load(SOURCE)
    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        checkpoint.save(CheckpointState(SOURCE))


def test_save__missing_folder__is_a_checkpoint_error(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "absent" / "x")
    with pytest.raises(CheckpointError, match=r"cannot write the checkpoint .*: No such file"):
        checkpoint.save(CheckpointState(SOURCE))
    with (
        pytest.raises(CheckpointError, match=r"cannot lock the checkpoint .*: No such file"),
        checkpoint.locked(),
    ):
        pass


def test_locked__by_another_run__is_refused_until_it_ends(checkpoint: Checkpoint) -> None:
    other = Checkpoint(checkpoint.path)
    with checkpoint.locked(), pytest.raises(CheckpointError, match="in use by another run"), other.locked():
        pass
    with other.locked():
        pass
    assert list(checkpoint.path.parent.iterdir()) == []


def test_locked__lock_file_removed_meanwhile__ends_without_error(checkpoint: Checkpoint) -> None:
    with checkpoint.locked():
        checkpoint._lock_path.unlink()


def test_locked__lock_file_replaced_meanwhile__locks_the_new_one(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the holder removes it between our open and our lock."""
    import fcntl  # noqa: PLC0415 - patched here

    real_flock = fcntl.flock
    removed: list[int] = []

    def flock(descriptor: int, how: int) -> None:
        if len(removed) < 2:
            checkpoint._lock_path.unlink()
            if removed:
                checkpoint._lock_path.touch()
            removed.append(descriptor)
        real_flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with checkpoint.locked(), pytest.raises(CheckpointError), Checkpoint(checkpoint.path).locked():
        pass
    assert len(removed) == 2


def test_locked__lock_file_always_removed__gives_up(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415 - patched here

    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: checkpoint._lock_path.unlink())
    with pytest.raises(CheckpointError, match="in use by another run"), checkpoint.locked():
        pass


# -- durability


class DiskLog:
    """Records the calls that decide what survives a power failure, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        real_fsync, real_replace = os.fsync, Path.replace

        def fsync(descriptor: int) -> None:
            real_fsync(descriptor)
            self.calls.append(("fsync", Path(f"/proc/self/fd/{descriptor}").read_text()))

        def replace(path: Path, target: Path) -> Path:
            self.calls.append(("replace", path.read_text()))
            return real_replace(path, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", replace)


def test_save__power_failure_at_any_moment__file_is_flushed_before_it_is_replaced(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskLog(monkeypatch)
    checkpoint.save(CheckpointState(SOURCE, ConfirmedOffsets(5), written=5))
    text = checkpoint.path.read_text()
    assert json.loads(text)["done_below"] == 5
    assert disk.calls == [("fsync", text), ("replace", text)], "the whole content is flushed first"


def test_run__ended__its_last_checkpoint_was_flushed_before_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskLog(monkeypatch)
    report = Pipeline(range(5), lambda item: None, checkpoint=tmp_path / "c").sync.run()
    assert report.done == 5
    flushed = [json.loads(text) for call, text in disk.calls if call == "fsync"]
    assert (flushed[-1]["done_below"], flushed[-1]["complete"]) == (5, True)
    assert [call for call, _ in disk.calls] == ["fsync", "replace"] * len(flushed)
