"""What is known about an outage of a shared store: for its fallback operations, and for people."""

from __future__ import annotations

from typing import NamedTuple


class Outage(NamedTuple):
    """An outage of the shared store as one worker knows it: since when, why, and how many workers there are.

    ``since`` is in Unix seconds, for people; ``since_us`` by the clock of the local state. ``denied``: the
    server is reachable and refuses this worker. ``full``: this worker has no room for another key.
    ``is_ending``: this worker is reporting what it granted, and grants nothing more until it has rejoined.
    ``first_worker_count``: the worker count when the outage began, if this worker has learned of more since.
    """

    since: float
    since_us: int
    reason: str
    worker_count: int
    denied: bool = False
    full: bool = False
    is_ending: bool = False
    first_worker_count: int = 0


class Fallback(NamedTuple):
    """Since when (Unix seconds) and why a worker decides from its local share, and among how many workers."""

    since: float
    reason: str
    worker_count: int
