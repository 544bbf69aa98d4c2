"""Bringing the tables up to date: in order, each once, however many processes start together.

Each migration is a transaction of its own, recorded in ``comporta_migrations`` in that same transaction; who
comes second waits for the first and finds it done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from comporta.database.base import Statement
from comporta.errors import DatabaseSchemaError

if TYPE_CHECKING:
    from comporta.database.base import Database, Execute

PATIENCE_SECONDS: Final = 600.0
"""How long a migration may take, the wait for another process included; a large table is rewritten once."""

_LOCK = 0x636F6D706F727461  # "comporta", as PostgreSQL's number for the lock
_RECORDS = Statement(
    "CREATE TABLE IF NOT EXISTS comporta_migrations"
    " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at DOUBLE PRECISION NOT NULL)"
)
_APPLIED = Statement("SELECT number, applied_at FROM comporta_migrations")
_CLOCK = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
}


class Migration(NamedTuple):
    """A step, in each dialect; ``name`` says what it is for."""

    number: int
    name: str
    sqlite: tuple[str, ...]
    postgresql: tuple[str, ...]


class Applied(NamedTuple):
    """A migration and when it was run (Unix seconds), or ``None``."""

    number: int
    name: str
    applied_at: float | None


def migrate(
    database: Database, migrations: Sequence[Migration], seconds: float = PATIENCE_SECONDS
) -> list[Migration]:
    """Run those that are missing, and return them."""
    return [migration for migration in migrations if _ran(database, migration, seconds)]


def status(database: Database, migrations: Sequence[Migration]) -> list[Applied]:
    """Return which were run and when; nothing is changed."""
    applied: dict[int, float] = {}
    with suppress(DatabaseSchemaError):  # not even the table of the records
        applied.update(database.read(_APPLIED, {}))
    return [Applied(each.number, each.name, applied.get(each.number)) for each in migrations]


def check(database: Database, migrations: Sequence[Migration]) -> None:
    """Refuse a database that misses one of them."""
    missing = [each for each in status(database, migrations) if each.applied_at is None]
    if missing:
        names = ", ".join(f"{each.number} ({each.name})" for each in missing)
        raise DatabaseSchemaError(
            f"{database.address}: migration {names} was not run; run `comporta db migrate`"
        )


def _ran(database: Database, migration: Migration, seconds: float) -> bool:
    with database.transaction(seconds) as execute:
        if database.dialect == "postgresql":
            execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        execute(getattr(_RECORDS, database.dialect))
        if (migration.number,) in execute("SELECT number FROM comporta_migrations"):
            return False
        for text in getattr(migration, database.dialect):
            execute(text)
        _record(execute, migration, _CLOCK[database.dialect])
    return True


def _record(execute: Execute, migration: Migration, clock: str) -> None:
    name = migration.name.replace("'", "''")
    execute(f"INSERT INTO comporta_migrations VALUES ({migration.number}, '{name}', {clock})")  # noqa: S608 - ours
