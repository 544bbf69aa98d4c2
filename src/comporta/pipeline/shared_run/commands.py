"""The commands of shared runs: every change and lookup in the database, each as one ``Command``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from comporta.database.base import Rows, RunStatement
from comporta.database.command import Command
from comporta.pipeline.shared_run import sql
from comporta.pipeline.shared_run.models import (
    ClaimedLine,
    LineCounts,
    LoadLease,
    RunOverview,
    RunSession,
    WorkerOverview,
)
from comporta.pipeline.shared_run.run_identity import RunIdentity

T = TypeVar("T")

WORKERS_KEPT_SECONDS: Final = 3600.0
"""A worker that ended longer ago is removed when the next one starts; its counts stay."""

RUNS_KEPT_SECONDS: Final = 30 * 86_400.0
"""A run that finished longer ago is removed, with its dead letters, when a shared run starts."""

_NO_COUNTS = LineCounts()

RunRow = tuple[str, str, str]
"""The id, the name and the options of a run."""


# -- runs


def add_run(identity: RunIdentity) -> Command[list[RunRow]]:
    """Add a run unless it exists. Returns the runs that have its id or its name."""
    return Command((sql.ADD_RUN, sql.FIND_RUN), identity._asdict(), _parse_run_rows)


def finish_run(run_id: str) -> Command[bool | None]:
    """Finish a run if no line is left. Returns whether it is finished; ``None`` if it was removed."""
    return Command((sql.FINISH_RUN, sql.READ_FINISHED), {"run_id": run_id}, _parse_flag)


# -- loading


def claim_loading(session: RunSession) -> Command[LoadLease | None]:
    """Claim the lease for loading the lines. Returns ``None`` if another worker has it, or all are loaded."""
    return Command(
        (sql.CLAIM_LOADING,), _params(session), lambda results: _first(results, lambda row: LoadLease(*row))
    )


def is_loaded(run_id: str) -> Command[bool | None]:
    """Return whether all lines are loaded; ``None`` if the run was removed."""
    return Command((sql.READ_LOADED,), {"run_id": run_id}, _parse_flag, writes=False)


def add_lines(
    run: RunStatement, session: RunSession, lease: LoadLease, lines: Sequence[tuple[str, str]]
) -> bool:
    """Add lines, each a key and an entry, after those loaded so far. Returns false if the lease was lost."""
    params = {
        **_params(session),
        "token": lease.token,
        "first": lease.line_count,
        "count": len(lines),
        "lines": json.dumps([f"{key:32}{entry}" for key, entry in lines]),
    }
    if not run(sql.EXTEND_LEASE, params):
        return False
    run(sql.ADD_LINES, params)
    return True


def finish_loading(session: RunSession, lease: LoadLease) -> Command[bool]:
    """Record that all lines are loaded. Returns false if the lease was lost."""
    params = {**_params(session), "token": lease.token}
    return Command((sql.FINISH_LOADING,), params, lambda results: bool(results[0]))


def release_loading(session: RunSession, lease: LoadLease) -> Command[None]:
    """Let another worker continue to load."""
    params = {**_params(session), "token": lease.token}
    return Command((sql.RELEASE_LOADING,), params, lambda results: None)


# -- lines


def claim_lines(
    session: RunSession, count: int, reclaim_except: Iterable[int] | None
) -> Command[list[ClaimedLine]]:
    """Claim the next ``count`` lines.

    Unless ``reclaim_except`` is ``None``, lines of workers that died are released first, and so are lines of
    this worker except those at the given positions.
    """
    statements = [sql.COUNT_LINES]
    if session.by_key:
        statements.insert(0, sql.LOCK_RUN)
    if reclaim_except is not None:
        statements.append(sql.RECLAIM_LINES)
    statements.append(sql.CLAIM_LINES_BY_KEY if session.by_key else sql.CLAIM_LINES)
    held = json.dumps(list(reclaim_except or ()))
    params = {**_params(session), **_NO_COUNTS._asdict(), "count": count, "held": held}
    return Command(
        tuple(statements), params, lambda results: sorted(ClaimedLine(*row) for row in results[-1])
    )


def delete_lines(run: RunStatement, session: RunSession, positions: Iterable[int]) -> frozenset[int]:
    """Delete the lines that belong to this worker, and return their positions."""
    params = {**_params(session), "positions": json.dumps(list(positions))}
    return frozenset(row[0] for row in run(sql.DELETE_LINES, params))


def add_dead_letters(run: RunStatement, session: RunSession, letters: Iterable[tuple[int, str]]) -> None:
    """Add dead letters, each a position and JSON."""
    listed = [f"{position:019}{letter}" for position, letter in letters]
    run(sql.ADD_DEAD_LETTERS, {**_params(session), "letters": json.dumps(listed)})


def count_lines(run: RunStatement, session: RunSession, counts: LineCounts) -> None:
    """Add to the counts of this worker, and renew its lease."""
    run(sql.COUNT_LINES, {**_params(session), **counts._asdict()})


# -- workers


def register_worker(session: RunSession) -> Command[None]:
    """Register this worker, and remove workers that ended long ago; the run keeps their counts."""
    params = {**_params(session), **_NO_COUNTS._asdict(), "kept_us": round(WORKERS_KEPT_SECONDS * 1e6)}
    return Command((*sql.REMOVE_ENDED_WORKERS, sql.COUNT_LINES), params, lambda results: None)


def renew_lease(session: RunSession, rate: float) -> Command[RunOverview | None]:
    """Renew the lease of this worker on all its lines. Returns the run; ``None`` if it was removed."""
    params = {**_params(session), **_NO_COUNTS._asdict(), "rate": rate}
    return Command((sql.COUNT_LINES, sql.SET_RATE, sql.READ_RUN), params, _parse_run)


def end_worker(session: RunSession) -> Command[RunOverview | None]:
    """Release all lines of this worker. Returns the run; ``None`` if it was removed."""
    statements = (sql.RELEASE_LINES, sql.END_WORKER, sql.FINISH_RUN, sql.READ_RUN)
    return Command(statements, _params(session), _parse_run)


# -- overviews


def list_runs(count: int) -> Command[list[RunOverview]]:
    """List runs, the latest first."""
    return Command(
        (sql.LIST_RUNS,),
        {"count": count},
        lambda results: [_overview(row) for row in results[0]],
        writes=False,
    )


def read_run(run_id: str) -> Command[RunOverview | None]:
    """Read a run."""
    return Command((sql.READ_RUN,), {"run_id": run_id}, _parse_run, writes=False)


def find_run_ids(name: str) -> Command[list[str]]:
    """Find up to two runs with this name, or whose id starts with it."""
    prefix = "".join(char for char in name if char in "0123456789abcdef")
    params = {"prefix": f"{prefix}%" if prefix and prefix == name else "", "name": name}
    return Command((sql.FIND_RUN_IDS,), params, lambda results: [row[0] for row in results[0]], writes=False)


def list_workers(run_id: str) -> Command[list[WorkerOverview]]:
    """List the workers of a run, including those that ended."""
    return Command(
        (sql.LIST_WORKERS,),
        {"run_id": run_id},
        lambda results: [_worker(row) for row in results[0]],
        writes=False,
    )


def read_dead_letters(run_id: str, after: int, count: int) -> Command[list[tuple[int, str]]]:
    """Read dead letters in the order of their lines, each a position and JSON."""
    params = {"run_id": run_id, "after": after, "count": count}
    return Command(
        (sql.READ_DEAD_LETTERS,),
        params,
        lambda results: [(row[0], row[1]) for row in results[0]],
        writes=False,
    )


# -- removal


def find_old_runs(count: int) -> Command[list[str]]:
    """Find runs that finished long ago."""
    params = {"kept_us": round(RUNS_KEPT_SECONDS * 1e6), "count": count}
    return Command((sql.FIND_OLD_RUNS,), params, lambda results: [row[0] for row in results[0]], writes=False)


def delete_some(run_id: str, count: int) -> Command[bool]:
    """Delete up to ``count`` lines and dead letters of a run. Returns whether there were any."""
    statements = (sql.DELETE_SOME_LINES, sql.DELETE_SOME_DEAD_LETTERS)
    return Command(statements, {"run_id": run_id, "count": count}, any)


def delete_run(run_id: str) -> Command[None]:
    """Delete a run and the lines and dead letters that are left."""
    return Command(sql.DELETE_RUN, {"run_id": run_id}, lambda results: None)


def _params(session: RunSession) -> dict[str, Any]:
    return {"run_id": session.run_id, "worker": session.worker, "lease_us": session.lease_us}


def _parse_run_rows(results: list[Rows]) -> list[RunRow]:
    return [(run_id, name, options) for run_id, name, options in results[-1]]


def _first(results: list[Rows], make: Callable[[tuple[Any, ...]], T]) -> T | None:
    return make(results[-1][0]) if results[-1] else None


def _parse_flag(results: list[Rows]) -> bool | None:
    return _first(results, lambda row: bool(row[0]))


def _parse_run(results: list[Rows]) -> RunOverview | None:
    return _first(results, _overview)


def _overview(row: tuple[Any, ...]) -> RunOverview:
    run_id, name, identity, line_count, created_us, loaded_us, finished_us, *counts, live, rate = row
    return RunOverview(
        run_id,
        name,
        json.loads(identity),
        line_count,
        created_us / 1e6,
        _seconds(loaded_us),
        _seconds(finished_us),
        LineCounts(*counts),
        live,
        float(rate),
    )


def _worker(row: tuple[Any, ...]) -> WorkerOverview:
    worker, started_us, is_live, written, dead, without_rows, rate, held, first, last = row
    counts = LineCounts(written, dead, without_rows)
    return WorkerOverview(
        worker, started_us / 1e6, bool(is_live), counts, rate if is_live else 0.0, held, first, last
    )


def _seconds(timestamp_us: int | None) -> float | None:
    return None if timestamp_us is None else timestamp_us / 1e6
