"""Values of shared runs: the session of a worker, claimed lines, and the overviews of runs and workers."""

from __future__ import annotations

from typing import Final, NamedTuple

LEASE_SECONDS: Final = 30.0
"""How long a worker may be silent before others take over its lines, by default."""

TIMEOUT_SECONDS: Final = 30.0
"""How long a transaction may take, unless the URL of the database says otherwise, as for the sinks."""

LOADING, WAITING, RUNNING, FINISHED = "loading", "waiting", "running", "finished"


class RunSession(NamedTuple):
    """One worker in one run; ``by_key``: lines of one key belong to one worker at a time."""

    run_id: str
    worker: str
    lease_us: int
    by_key: bool


class LoadLease(NamedTuple):
    """The lease of the worker that loads the lines, and how many of them are loaded already."""

    token: int
    line_count: int


class ClaimedLine(NamedTuple):
    """A line that belongs to this worker, and how often it was claimed; ``entry`` is JSON."""

    position: int
    attempts: int
    entry: str


class LineCounts(NamedTuple):
    """How many lines were settled: with rows, as dead letters, and without rows."""

    written: int = 0
    dead: int = 0
    without_rows: int = 0

    @property
    def done(self) -> int:
        """The number of all of them."""
        return self.written + self.dead + self.without_rows


class RunOverview(NamedTuple):
    """A run and its progress; times are Unix seconds, ``rate`` is in lines per second."""

    run_id: str
    name: str
    identity: dict[str, str]
    line_count: int
    created_at: float
    loaded_at: float | None
    finished_at: float | None
    counts: LineCounts
    live_workers: int
    rate: float

    @property
    def status(self) -> str:
        """``finished``, ``waiting`` (no worker is live), ``loading`` or ``running``."""
        if self.finished_at is not None:
            return FINISHED
        if not self.live_workers:
            return WAITING
        return LOADING if self.loaded_at is None else RUNNING


class WorkerOverview(NamedTuple):
    """A worker of a run: what it has done, and the lines that it holds."""

    worker: str
    started_at: float
    is_live: bool
    counts: LineCounts
    rate: float
    held: int
    first_position: int | None
    last_position: int | None
