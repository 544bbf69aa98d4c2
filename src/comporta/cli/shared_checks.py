"""What ``comporta doctor`` checks on ``shared://``: the folder, its room, its locks.

A folder that is not there is not made: it is made by whoever uses the name first.
"""

from __future__ import annotations

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click

from comporta.cli.checks import (
    Finding,
    decisions,
    good,
    mend,
    mind,
    promptness,
    throw_away_limiter,
    timed,
    workers,
)
from comporta.cli.states import SharedUrl, opened
from comporta.errors import StateTimeoutError
from comporta.limits.config import LimitStrategy
from comporta.stores.base import Store
from comporta.stores.shared import SharedStore
from comporta.stores.table import geometry

_FULL_SHARE = 0.8


def examine(url: str, shared: SharedUrl) -> Iterator[Finding]:
    """Check a folder; what is in it only if it is ours."""
    found = folder(shared.path)
    yield found
    if not os.path.lexists(shared.path):
        yield room(shared, shutil.disk_usage(Path(shared.path).parent).free)
    elif found.verdict != "mend":
        yield from _inside(url)


def _inside(url: str) -> Iterator[Finding]:
    try:
        with opened(url) as (store, deadline):
            yield use(cast(SharedStore, store).table.used())
            yield locks(store, deadline)
            yield decisions(store)
            yield workers(store)
    except click.UsageError:
        raise
    except click.ClickException as error:
        yield mend("table", error.message)


def folder(path: str) -> Finding:
    """See that the folder is ours and closed to others."""
    try:
        found = Path(path).lstat()
    except FileNotFoundError:
        return good("folder", f"{path} is not there: nobody uses it yet, the first who does makes it")
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        return mend("folder", f"{path} is no folder: remove it")
    if found.st_uid != os.geteuid():
        return mend(
            "folder", f"{path} belongs to user {found.st_uid}, not to {os.geteuid()}: have it removed"
        )
    if mode & 0o077:
        return mend("folder", f"{path} has mode {mode:04o}, others could change it: chmod 700")
    return good("folder", f"{path}, mode {mode:04o}")


def room(shared: SharedUrl, free: int) -> Finding:
    """See that a folder that is still to be made has room; one that is there has taken its own."""
    needed = geometry(shared.keys)[-1].end
    detail = f"{_mb(free)} free, {_mb(needed)} needed for {shared.keys:,} keys"
    if free < needed:
        return mend("room", f"{detail}: free some, or ask for fewer with ?keys=")
    return good("room", detail)


def _mb(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def use(classes: list[tuple[int, int]]) -> Finding:
    """See that new keys find a place: the fullest class of slots counts."""
    taken, slots = max(classes, key=lambda found: found[0] / found[1])
    sizes = " / ".join(f"{used:,} of {there:,}" for used, there in classes)
    detail = f"{sizes} slots for small, larger and large states (ended ones included)"
    if taken / slots > _FULL_SHARE:
        return mind("use", f"{detail}: new keys may find no room; use another name with a larger ?keys=")
    return good("use", detail)


def locks(store: Store, deadline: float) -> Finding:
    """Time looks at limits all over the table, so that every lock has its turn."""
    try:
        limiter = throw_away_limiter(store, LimitStrategy.TOKEN_BUCKET)  # takes a lock itself
        times_ms = timed(lambda: limiter.peek(uuid.uuid4().hex))
    except StateTimeoutError as error:
        return mend("latency", str(error))
    return promptness(times_ms, deadline)
