"""The checks of ``comporta doctor`` for ``shared://``: its directory, processes, free space and locks.

The checks never create the directory: the first worker that uses the name does.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click

from comporta.cli.doctor_checks import (
    Finding,
    call_times_ms,
    check_decisions,
    check_workers,
    fail,
    latency_finding,
    ok,
    temporary_limiter,
    warn,
)
from comporta.cli.state_option import SharedUrl, inspect_store
from comporta.errors import StateTimeoutError
from comporta.limits.config import LimitStrategy
from comporta.stores.base import Store
from comporta.stores.shared.directory import TABLE_NAME
from comporta.stores.shared.layout import MEMORY_MB_MIN
from comporta.stores.shared.store import SharedStore
from comporta.stores.shared.table import TableUsage

_PROCESSES = Path("/proc")  # where the kernel shows what each process has mapped; not on macOS
_PIDS_SHOWN_MAX = 5


def check_shared(url: str, shared: SharedUrl) -> Iterator[Finding]:
    """Check the directory, and the table in it if the directory is safe to use."""
    directory = check_directory(shared.path)
    yield directory
    yield from check_processes(shared.path)
    if not os.path.lexists(shared.path):
        yield check_space(shared, shutil.disk_usage(Path(shared.path).parent).free)
    elif directory.status != "fail":
        yield from _check_table(url)


def _check_table(url: str) -> Iterator[Finding]:
    try:
        with inspect_store(url) as (store, deadline):
            yield check_usage(cast(SharedStore, store).table.usage())
            yield check_locks(store, deadline)
            yield check_decisions(store)
            yield check_workers(store)
    except click.UsageError:
        raise
    except click.ClickException as error:
        yield fail("table", error.message)


def check_directory(path: str) -> Finding:
    """Check that the directory belongs to this user and is closed to others."""
    try:
        status = Path(path).lstat()
    except FileNotFoundError:
        return ok("directory", f"{path} does not exist yet; the first worker creates it")
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISDIR(status.st_mode):
        return fail("directory", f"{path} is not a directory: remove it")
    if status.st_uid != os.geteuid():
        owners = f"user {status.st_uid}, not to user {os.geteuid()}"
        return fail("directory", f"{path} belongs to {owners}: ask its owner to remove it")
    if mode & 0o077:
        return fail("directory", f"{path} has mode {mode:04o}, so other users may change it: run chmod 700")
    return ok("directory", f"{path}, mode {mode:04o}")


def check_processes(path: str) -> Iterator[Finding]:
    """Check that the processes of this user have mapped the current table, and not one that was removed."""
    inodes_by_pid = _mapped_tables(path)
    try:
        inode = (Path(path) / TABLE_NAME).stat().st_ino
    except OSError:
        inode = None
    others = sorted(pid for pid, inodes in inodes_by_pid.items() if inode not in inodes)
    if others:
        shown = ", ".join(map(str, others[:_PIDS_SHOWN_MAX])) + (", …" if others[_PIDS_SHOWN_MAX:] else "")
        yield fail(
            "processes",
            f"{len(others)} of {len(inodes_by_pid)} processes use a table that was removed ({shown}), and "
            "share no limits with the others: they should notice within 2 s; restart those that do not",
        )
    elif inodes_by_pid:
        yield ok("processes", f"{len(inodes_by_pid)} use the table")


def _mapped_tables(path: str) -> dict[int, set[int]]:
    """Return the inodes of the tables of this directory, removed ones included, that each process maps."""
    table = rf"{re.escape(path)}(?:\.\d+\.\d+)?/{TABLE_NAME}(?: \(deleted\))?"
    mapped = re.compile(rf" (\d+) +{table}$", re.MULTILINE)
    found = {}
    for maps in _PROCESSES.glob("[0-9]*/maps"):
        try:
            inodes = {int(inode) for inode in mapped.findall(maps.read_text(errors="replace"))}
        except OSError:  # another user's process, or it has ended
            continue
        if inodes:
            found[int(maps.parent.name)] = inodes
    return found


def check_space(shared: SharedUrl, free: int) -> Finding:
    """Check that there is enough disk space for a table that does not exist yet."""
    detail = f"{_megabytes(free)} free, the table grows to {shared.memory_mb:,} MB"
    if free < MEMORY_MB_MIN * 2**20:
        return fail("space", f"{detail}: free at least {MEMORY_MB_MIN} MB")
    if free < shared.memory_mb * 2**20:
        return warn("space", f"{detail}: it stays smaller; free some space, or use less with ?memory=")
    return ok("space", detail)


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def check_usage(usage: TableUsage) -> Finding:
    """Check that there is room for new keys."""
    detail = (
        f"{usage.keys:,} keys (expired ones included) in {usage.megabytes:,.0f} of {usage.megabytes_max:,} MB"
    )
    if usage.is_disk_full:
        return warn("usage", f"{detail}: the disk is full, so the table cannot grow; enlarge it (--shm-size)")
    if usage.has_evicted:
        return warn("usage", f"{detail}: keys were evicted; use another name with a larger ?memory=")
    return ok("usage", detail)


def check_locks(store: Store, deadline: float) -> Finding:
    """Time reads of limits all over the table, so that they use every lock."""
    try:
        limiter = temporary_limiter(store, LimitStrategy.TOKEN_BUCKET)  # also takes a lock
        times_ms = call_times_ms(lambda: limiter.peek(uuid.uuid4().hex))
    except StateTimeoutError as error:
        return fail("latency", str(error))
    return latency_finding(times_ms, deadline)
