"""The cache's tables in one database: every command as a blocking and as an async method.

Each command is one transaction that starts with the record of its key, so that two workers that change the
same key do so one after the other. ``commands.py`` and ``queries.py`` define the commands; this module adds
a database and, for tests, a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from comporta import events
from comporta.cache import commands, queries, tags
from comporta.cache.migrations import MIGRATIONS
from comporta.database.base import Database, Parameters, Rows, Statement
from comporta.database.command import Command, execute, execute_async
from comporta.database.migrations import check_applied, migrate
from comporta.errors import DatabaseError, DatabaseSchemaError

P = ParamSpec("P")
T = TypeVar("T")


def _methods(
    build: Callable[P, Command[T]],
) -> tuple[
    Callable[Concatenate[CacheTables, P], T],
    Callable[Concatenate[CacheTables, P], Coroutine[Any, Any, T]],
]:
    """Return the blocking and the async method that run the commands which ``build`` returns."""

    def block(tables: CacheTables, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return tables.execute(build(*args, **kwargs))

    def wait(tables: CacheTables, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return tables.execute_async(build(*args, **kwargs))

    for method, name in ((block, build.__name__), (wait, f"{build.__name__}_async")):
        method.__name__ = name
        method.__doc__ = build.__doc__
    return block, wait


class CacheTables:
    """The tables ``search_results_cache``, ``search_fetches`` and ``search_cache_answers`` of one database.

    A key names what one fetch covers: ``params_hash`` if all users share results, otherwise a string made of
    the user and ``params_hash``. ``clock`` (Unix seconds) replaces the database's clock in tests.
    """

    def __init__(self, database: Database, clock: Callable[[], float] | None = None) -> None:
        self.database = database
        self._clock = clock
        self._try_read = database.try_read

    def migrate(self) -> None:
        """Create or update the tables."""
        migrate(self.database, MIGRATIONS)

    def check(self) -> None:
        """Raise ``DatabaseSchemaError`` if a migration is missing."""
        check_applied(self.database, MIGRATIONS)

    def try_read(self, statement: Statement, parameters: Parameters) -> Rows | None:
        """Return the rows of the statement of a ``single_row`` command; ``None`` if that would block."""
        if self._clock is not None:
            parameters = {**parameters, "now": self._clock()}
        return self._try_read(statement, parameters)

    def execute(self, command: Command[T]) -> T:
        """Run a command, and block until it is done."""
        return execute(self.database, self._at_clock(command))

    def execute_async(self, command: Command[T]) -> Coroutine[Any, Any, T]:
        """Run a command without blocking the event loop."""
        return execute_async(self.database, self._at_clock(command))

    def _at_clock(self, command: Command[T]) -> Command[T]:
        if self._clock is None:
            return command
        return command._replace(parameters={**command.parameters, "now": self._clock()})

    read, read_async = _methods(commands.read)
    read_result, read_result_async = _methods(commands.read_result)
    read_claim, read_claim_async = _methods(commands.read_claim)
    claim, claim_async = _methods(commands.claim)
    renew, renew_async = _methods(commands.renew)
    release, release_async = _methods(commands.release)
    record_success, record_success_async = _methods(commands.record_success)
    record_failure, record_failure_async = _methods(commands.record_failure)
    record_accesses, record_accesses_async = _methods(commands.record_accesses)
    evict, evict_async = _methods(commands.evict)
    evict_least_recently_used, evict_least_recently_used_async = _methods(commands.evict_least_recently_used)
    remove, remove_async = _methods(commands.remove)
    mark_due, mark_due_async = _methods(commands.mark_due)
    list_due, list_due_async = _methods(commands.list_due)
    list_rows, list_rows_async = _methods(commands.list_rows)
    read_stats, read_stats_async = _methods(commands.read_stats)
    list_top, list_top_async = _methods(commands.list_top)
    list_degraded, list_degraded_async = _methods(queries.list_degraded)
    list_recent_coverage, list_recent_coverage_async = _methods(queries.list_recent_coverage)
    count_fetches_by_worker, count_fetches_by_worker_async = _methods(queries.count_fetches_by_worker)
    read_summary, read_summary_async = _methods(queries.read_summary)
    remove_tagged, remove_tagged_async = _methods(tags.remove_tagged)
    remove_key, remove_key_async = _methods(tags.remove_key)
    read_many, read_many_async = _methods(tags.read_many)
    clear, clear_async = _methods(commands.clear)
    prune, prune_async = _methods(commands.prune)


def prepare_tables(tables: CacheTables, name: str, run_migrations: bool | None) -> None:
    """Create or check the tables of a cache; ``None`` creates them in SQLite files only.

    An unreachable database only publishes an event, because it may recover; a missing migration is raised.
    """
    if run_migrations is None:
        run_migrations = tables.database.dialect == "sqlite"
    try:
        tables.migrate() if run_migrations else tables.check()
    except DatabaseSchemaError:
        raise
    except DatabaseError as error:
        events.publish("cache_read_failed", name, f"could not check the tables: {error}", "error")
