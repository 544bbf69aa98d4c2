"""The checkpoint file of a run: which items are done, so that a run that was killed can resume.

Saving a checkpoint replaces the whole file and never writes in place, so a process that is killed leaves the
old or the new one. A lock file next to it prevents two runs from resuming from one checkpoint and doing
everything twice. A checkpoint belongs to one source and names it: resuming with another source would skip
items.

This module blocks; coroutines call it on a thread.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from comporta.errors import CheckpointError
from comporta.pipeline.files.append_journal import RUN_CHARS
from comporta.pipeline.run.offsets import ConfirmedOffsets
from comporta.runtime import RUNTIME
from comporta.validators import require_integer

VERSION = 2
POSITIONS_MAX = 2**53
"""No source has more items. The bound keeps a number in an edited file from filling the memory."""

_ABOVE_POSITIONS_MAX = 10_000_000
_LOCK_TRIES = 100

SourceIdentity = Mapping[str, Any]
"""What identifies a source: a few names with plain values."""


@dataclass(slots=True)
class CheckpointState:
    """The content of a checkpoint: which items of which source are done, and the counts of the run.

    ``run`` identifies the run. ``output_end`` is how far the file of the sink holds the rows of done items
    and nothing else; ``None`` for a sink that replaces rows instead.
    """

    source: SourceIdentity
    confirmed: ConfirmedOffsets = field(default_factory=ConfirmedOffsets)
    written: int = 0
    dead: int = 0
    complete: bool = False
    run: str = field(default_factory=lambda: RUNTIME.random_bytes(RUN_CHARS // 2).hex())
    output_end: int | None = None

    def copy(self) -> CheckpointState:
        """Return a copy, to be saved while the run continues."""
        return replace(self, confirmed=self.confirmed.copy())


class Checkpoint:
    """One checkpoint file; a run uses it inside ``locked()``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._draft_path = self.path.with_name(self.path.name + ".new")
        self._lock_path = self.path.with_name(self.path.name + ".lock")
        self.journal_path = self.path.with_name(self.path.name + ".journal")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from using the file; a process that was killed holds no lock."""
        try:
            descriptor = self._acquire_lock()
        except OSError as error:
            raise CheckpointError(f"cannot lock the checkpoint {self.path}: {error.strerror}") from error
        try:
            yield
        finally:
            with suppress(OSError):  # the lock file was removed meanwhile
                self._lock_path.unlink()
            os.close(descriptor)

    def load(self, source: SourceIdentity) -> CheckpointState:
        """Return the state of the run of this source; an empty one if there is no file."""
        state = self.peek()
        if state is None:
            return CheckpointState(source)
        self._check_source(state.source, source)
        return state

    def peek(self) -> CheckpointState | None:
        """Return the content of the file for any source; ``None`` if there is no file."""
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"cannot read the checkpoint {self.path}: {error}") from error
        return self._parse(text)

    def save(self, state: CheckpointState) -> None:
        """Replace the file by one whose content is on the disk already."""
        try:
            with self._draft_path.open("w", encoding="utf-8") as draft:
                json.dump(_to_json(state), draft)
                draft.flush()
                os.fsync(draft.fileno())
            self._draft_path.replace(self.path)
        except OSError as error:
            raise CheckpointError(f"cannot write the checkpoint {self.path}: {error.strerror}") from error

    def _acquire_lock(self) -> int:
        """Lock the file that has the lock's name now: a previous holder removes its own lock file."""
        for _ in range(_LOCK_TRIES):
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == self._lock_path.stat().st_ino:
                    return descriptor
            except FileNotFoundError:
                pass
            except BlockingIOError:
                os.close(descriptor)
                break
            os.close(descriptor)
        raise CheckpointError(f"the checkpoint {self.path} is in use by another run; wait for it to end")

    def _parse(self, text: str) -> CheckpointState:
        try:
            data = json.loads(text)
            if data["version"] != VERSION:
                raise ValueError(f"version must be {VERSION}, got {data['version']!r:.50}")
            return CheckpointState(
                dict(data["source"]),
                _parse_offsets(data["done_below"], data["done_above"]),
                _parse_count("written", data["written"]),
                _parse_count("dead", data["dead"]),
                bool(data["complete"]),
                _parse_run(data["run"]),
                None if data["output_end"] is None else _parse_count("output_end", data["output_end"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            reason = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                f"checkpoint file is corrupt: {self.path} (expected a JSON object as comporta writes it: "
                f"{reason:.200}); remove it to start again"
            ) from error

    def _check_source(self, saved: SourceIdentity, given: SourceIdentity) -> None:
        """Raise if the sources differ, and name the differences: another path, or a size that has changed."""
        different = [
            f"{name} was {saved.get(name)!r:.200}, is {given.get(name)!r:.200}"
            for name in sorted({*saved, *given})
            if saved.get(name) != given.get(name)
        ]
        if different:
            raise CheckpointError(
                f"the checkpoint {self.path} belongs to another run: {'; '.join(different)}. "
                "Resume the run as it was, or remove the checkpoint to start again."
            )


def _to_json(state: CheckpointState) -> dict[str, Any]:
    return {
        "version": VERSION,
        "source": dict(state.source),
        "done_below": state.confirmed.low_watermark,
        "done_above": state.confirmed.ranges(),
        "written": state.written,
        "dead": state.dead,
        "complete": state.complete,
        "run": state.run,
        "output_end": state.output_end,
    }


def _parse_offsets(low: Any, above: Any) -> ConfirmedOffsets:
    ranges = [
        (_parse_count("done_above", first), _parse_count("done_above", after)) for first, after in above
    ]
    if sum(max(0, after - first) for first, after in ranges) > _ABOVE_POSITIONS_MAX:
        raise ValueError(f"done_above must hold at most {_ABOVE_POSITIONS_MAX} positions, got more")
    return ConfirmedOffsets(_parse_count("done_below", low), ranges)


def _parse_run(value: Any) -> str:
    if not isinstance(value, str) or len(value) != RUN_CHARS or not value.isalnum() or not value.isascii():
        raise ValueError(f"run must be {RUN_CHARS} letters and digits, got {value!r:.50}")
    return value


def _parse_count(name: str, value: Any) -> int:
    return require_integer(name, value, 0, POSITIONS_MAX)
