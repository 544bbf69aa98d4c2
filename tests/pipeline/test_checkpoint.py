"""The file that a killed run goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comporta.errors import CheckpointError
from comporta.pipeline.runs.checkpoint import Checkpoint, Standing
from comporta.pipeline.runs.confirmed import Confirmed

SOURCE = {"kind": "lines", "path": "/x", "size_bytes": 7}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "run.checkpoint")


def test_load__no_file__begins_at_the_beginning(checkpoint: Checkpoint) -> None:
    standing = checkpoint.load(SOURCE)
    assert (standing.source, len(standing.confirmed), standing.complete) == (SOURCE, 0, False)


def test_save__loaded_again__is_the_same(checkpoint: Checkpoint) -> None:
    saved = Standing(SOURCE, Confirmed(5, [(7, 9), (12, 13)]), written=6, dead=2, complete=True)
    checkpoint.save(saved)
    found = checkpoint.load(SOURCE)
    assert (found.confirmed.low, found.confirmed.ranges()) == (5, [(7, 9), (12, 13)])
    assert (found.written, found.dead, found.complete) == (6, 2, True)
    assert [path.name for path in checkpoint.path.parent.iterdir()] == ["run.checkpoint"]


def test_load__of_another_source__names_what_differs(checkpoint: Checkpoint) -> None:
    checkpoint.save(Standing(SOURCE))
    with pytest.raises(CheckpointError, match=r"size_bytes was 7, is 8\. Give it as it was"):
        checkpoint.load({**SOURCE, "size_bytes": 8})
    with pytest.raises(CheckpointError, match="begins was None, is 'ab'"):
        checkpoint.load({**SOURCE, "begins": "ab"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 100_000,
        json.dumps({"version": 2}),
        *(
            json.dumps(
                {
                    "version": 1,
                    "source": {},
                    "done_below": 0,
                    "done_above": [],
                    "written": 0,
                    "dead": 0,
                    "complete": False,
                }
                | wrong
            )
            for wrong in (
                {"done_below": -1},
                {"done_below": True},
                {"done_above": [[0, 2**53 + 1]]},
                {"done_above": [[0, 2**52]]},
                {"done_above": [[1]]},
                {"dead": "x"},
                {"source": 5},
            )
        ),
    ],
)
def test_load__mangled_file__is_a_named_error(checkpoint: Checkpoint, text: str) -> None:
    checkpoint.path.write_text(text)
    with pytest.raises(CheckpointError, match="is no checkpoint"):
        checkpoint.load({})


def test_load__unreadable__is_a_named_error(checkpoint: Checkpoint) -> None:
    checkpoint.path.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(SOURCE)
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.save(Standing(SOURCE))


def test_save__no_folder__is_a_named_error(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "absent" / "x")
    with pytest.raises(CheckpointError, match="cannot be written: No such file"):
        checkpoint.save(Standing(SOURCE))
    with pytest.raises(CheckpointError, match="cannot be locked: No such file"), checkpoint.hold():
        pass


def test_hold__by_somebody__keeps_others_out_until_it_ends(checkpoint: Checkpoint) -> None:
    other = Checkpoint(checkpoint.path)
    with checkpoint.hold(), pytest.raises(CheckpointError, match="another run uses it now"), other.hold():
        pass
    with other.hold():
        pass
    assert list(checkpoint.path.parent.iterdir()) == []


def test_hold__lock_was_tidied_away__ends_well(checkpoint: Checkpoint) -> None:
    with checkpoint.hold():
        checkpoint._lock.unlink()


def test_hold__lock_is_replaced_just_then__takes_the_new_one(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the one who held it removes it between our opening and our locking it."""
    import fcntl  # noqa: PLC0415 - it is what is looked over the shoulder of

    true = fcntl.flock
    tidied: list[int] = []

    def flock(descriptor: int, how: int) -> None:
        if len(tidied) < 2:
            checkpoint._lock.unlink()
            if tidied:
                checkpoint._lock.touch()
            tidied.append(descriptor)
        true(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with checkpoint.hold(), pytest.raises(CheckpointError), Checkpoint(checkpoint.path).hold():
        pass
    assert len(tidied) == 2


def test_hold__lock_is_always_tidied_away__gives_up(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # noqa: PLC0415 - see above

    monkeypatch.setattr(fcntl, "flock", lambda descriptor, how: checkpoint._lock.unlink())
    with pytest.raises(CheckpointError, match="another run uses it"), checkpoint.hold():
        pass
