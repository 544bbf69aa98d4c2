"""Where a run stands, in a file: what a run that was killed goes on from.

The file is replaced as a whole, never written in place: a process that is killed leaves the old one or the
new one. Next to it lies a lock as long as somebody uses it: two runs that go on from one checkpoint would do
everything twice. It is about one source, and says which: going on in another one would skip its items.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comporta.errors import CheckpointError
from comporta.pipeline.runs.confirmed import Confirmed

VERSION = 1
POSITIONS_MAX = 2**53
"""Beyond it there is no source; a number from a file that somebody edited is not to fill the memory."""

_ABOVE_MAX = 10_000_000
_LOCK_TRIES = 100

Identity = Mapping[str, Any]
"""What a source is known by: a few names with plain values."""


@dataclass(slots=True)
class Standing:
    """What a checkpoint says: what is done of which source, and how it went."""

    source: Identity
    confirmed: Confirmed = field(default_factory=Confirmed)
    written: int = 0
    dead: int = 0
    complete: bool = False

    def copy(self) -> Standing:
        """Return how it stands now."""
        return Standing(self.source, self.confirmed.copy(), self.written, self.dead, self.complete)


class Checkpoint:
    """One file. ``hold`` it while a run uses it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._draft = self.path.with_name(self.path.name + ".new")
        self._lock = self.path.with_name(self.path.name + ".lock")

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep others from using it; whoever was killed holds nothing."""
        try:
            descriptor = self._locked()
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be locked: {error.strerror}") from error
        try:
            yield
        finally:
            with suppress(OSError):  # somebody tidied up
                self._lock.unlink()
            os.close(descriptor)

    def load(self, source: Identity) -> Standing:
        """Return where the run of this source stands; from the beginning, if there is no file."""
        standing = self.peek()
        if standing is None:
            return Standing(source)
        self._check_source(standing.source, source)
        return standing

    def peek(self) -> Standing | None:
        """Return what the file says, whichever source it is about; ``None``: there is none."""
        try:
            text = self.path.read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{self.path}: cannot be read: {error}") from error
        return self._read(text)

    def save(self, standing: Standing) -> None:
        """Replace the file, and see it on the disk."""
        try:
            with self._draft.open("w", encoding="utf-8") as draft:
                json.dump(_written(standing), draft)
                draft.flush()
                os.fsync(draft.fileno())
            self._draft.replace(self.path)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be written: {error.strerror}") from error

    def _locked(self) -> int:
        """Lock the file that has the name now: whoever held it before removes theirs."""
        for _ in range(_LOCK_TRIES):
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == self._lock.stat().st_ino:
                    return descriptor
            except FileNotFoundError:
                pass
            except BlockingIOError:
                os.close(descriptor)
                break
            os.close(descriptor)
        raise CheckpointError(f"{self.path}: another run uses it now")

    def _read(self, text: str) -> Standing:
        try:
            found = json.loads(text)
            if found["version"] != VERSION:
                raise ValueError(f"version must be {VERSION}, got {found['version']!r:.50}")
            return Standing(
                dict(found["source"]),
                _confirmed(found["done_below"], found["done_above"]),
                _count("written", found["written"]),
                _count("dead", found["dead"]),
                bool(found["complete"]),
            )
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise CheckpointError(f"{self.path}: is no checkpoint: {error!r:.200}") from error

    def _check_source(self, known: Identity, given: Identity) -> None:
        """Name what differs, so that people see whether it is another file or one that was changed."""
        different = [
            f"{name} was {known.get(name)!r:.200}, is {given.get(name)!r:.200}"
            for name in sorted({*known, *given})
            if known.get(name) != given.get(name)
        ]
        if different:
            raise CheckpointError(
                f"{self.path}: belongs to another run: {'; '.join(different)}. "
                "Give it as it was, or remove the checkpoint to begin anew."
            )


def _written(standing: Standing) -> dict[str, Any]:
    return {
        "version": VERSION,
        "source": dict(standing.source),
        "done_below": standing.confirmed.low,
        "done_above": standing.confirmed.ranges(),
        "written": standing.written,
        "dead": standing.dead,
        "complete": standing.complete,
    }


def _confirmed(low: Any, above: Any) -> Confirmed:
    ranges = [(_count("done_above", first), _count("done_above", after)) for first, after in above]
    if sum(max(0, after - first) for first, after in ranges) > _ABOVE_MAX:
        raise ValueError(f"done_above must hold at most {_ABOVE_MAX} positions")
    return Confirmed(_count("done_below", low), ranges)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= POSITIONS_MAX:
        raise ValueError(f"{name} must be 0 to {POSITIONS_MAX}, got {value!r:.50}")
    return value
