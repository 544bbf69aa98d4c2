"""The cache's table, for all workers: who may fetch a key, what came of it, and how the key fares.

Every verb is one transaction that begins with the record of its key, so that two workers at the same key do
one after the other whatever they do. What the verbs are is in ``requests.py``; here they get a database, a
clock and their two faces, blocking and awaiting.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from comporta.cache import looks, requests
from comporta.cache.migrations import MIGRATIONS
from comporta.cache.requests import Request
from comporta.cache.rows import Claim, Due, Entry, Health, Listed, Top, Touch
from comporta.database.base import Database, Parameters, Rows
from comporta.database.migrations import check, migrate

__all__ = ["CacheTable", "Claim", "Due", "Entry", "Health", "Listed", "Top", "Touch"]

P = ParamSpec("P")
T = TypeVar("T")


def _faces(
    asks: Callable[P, Request[T]],
) -> tuple[
    Callable[Concatenate[CacheTable, P], T],
    Callable[Concatenate[CacheTable, P], Coroutine[Any, Any, T]],
]:
    """Return the blocking and the awaiting face of a verb."""

    def block(table: CacheTable, /, *given: P.args, **named: P.kwargs) -> T:
        return table.ask(asks(*given, **named))

    def wait(table: CacheTable, /, *given: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        return table.ask_async(asks(*given, **named))

    for face, name in ((block, asks.__name__), (wait, f"{asks.__name__}_async")):
        face.__name__ = name
        face.__doc__ = asks.__doc__
    return block, wait


class CacheTable:
    """``search_results_cache`` and ``search_fetches`` of one database.

    A key is what is fetched as one: ``params_hash`` for all users together, or anything else, made of the
    user and ``params_hash``, for one user. ``clock`` (Unix seconds) takes the place of the database's, for
    tests.
    """

    def __init__(self, database: Database, clock: Callable[[], float] | None = None) -> None:
        self.database = database
        self._clock = clock
        self._glance = database.glance

    def migrate(self) -> None:
        """Bring the tables up to date."""
        migrate(self.database, MIGRATIONS)

    def check(self) -> None:
        """Refuse a database that misses a migration."""
        check(self.database, MIGRATIONS)

    def glance(self, request: Request[T]) -> list[Rows] | None:
        """Return what a small request finds, to be parsed, if that is to be had without waiting."""
        told = request.parameters if self._clock is None else self._told(request)
        found = self._glance(request.statements[0], told)
        return None if found is None else [found]

    def ask(self, request: Request[T]) -> T:
        """Carry a request out, blocking."""
        told = self._told(request)
        if request.writes:
            return request.parse(self.database.write(request.statements, told))
        return request.parse([self.database.read(each, told) for each in request.statements])

    async def ask_async(self, request: Request[T]) -> T:
        """Carry a request out, awaiting."""
        told = self._told(request)
        if request.writes:
            return request.parse(await self.database.write_async(request.statements, told))
        return request.parse([await self.database.read_async(each, told) for each in request.statements])

    def _told(self, request: Request[T]) -> Parameters:
        return request.parameters if self._clock is None else {**request.parameters, "now": self._clock()}

    read, read_async = _faces(requests.read)
    read_shared, read_shared_async = _faces(requests.read_shared)
    look, look_async = _faces(requests.look)
    claim, claim_async = _faces(requests.claim)
    renew, renew_async = _faces(requests.renew)
    release, release_async = _faces(requests.release)
    succeed, succeed_async = _faces(requests.succeed)
    fail, fail_async = _faces(requests.fail)
    touch, touch_async = _faces(requests.touch)
    evict, evict_async = _faces(requests.evict)
    rm, rm_async = _faces(requests.rm)
    mark_due, mark_due_async = _faces(requests.mark_due)
    due, due_async = _faces(requests.due)
    rows, rows_async = _faces(requests.rows)
    figures, figures_async = _faces(requests.figures)
    top, top_async = _faces(requests.top)
    unwell, unwell_async = _faces(looks.unwell)
    partial, partial_async = _faces(looks.partial)
    fetchers, fetchers_async = _faces(looks.fetchers)
    brief, brief_async = _faces(looks.brief)
    clear, clear_async = _faces(requests.clear)
    prune, prune_async = _faces(requests.prune)
