"""Runs migrations in order, each once, however many processes start together.

Each migration is one transaction, which also records it in ``comporta_migrations``. A second process waits
for the first one and then finds the migration done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from comporta.database.base import Statement
from comporta.errors import DatabaseSchemaError

if TYPE_CHECKING:
    from comporta.database.base import Database, Execute

MIGRATION_SECONDS_MAX: Final = 600.0
"""How long a migration may take, including the wait for another process; it may rewrite a large table."""

_LOCK = 0x636F6D706F727461  # "comporta" in ASCII, as the number of an advisory lock
_CREATE_RECORDS = Statement(
    "CREATE TABLE IF NOT EXISTS comporta_migrations"
    " (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at DOUBLE PRECISION NOT NULL)"
)
_READ_APPLIED = Statement("SELECT number, applied_at FROM comporta_migrations")
_CLOCK = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
}


class Migration(NamedTuple):
    """One migration in both dialects; ``name`` says what it creates."""

    number: int
    name: str
    sqlite: tuple[str, ...]
    postgresql: tuple[str, ...]


class MigrationStatus(NamedTuple):
    """A migration and when it was applied (Unix seconds), or ``None``."""

    number: int
    name: str
    applied_at: float | None


def migrate(
    database: Database, migrations: Sequence[Migration], seconds: float = MIGRATION_SECONDS_MAX
) -> list[Migration]:
    """Run the migrations that are missing, and return them."""
    return [migration for migration in migrations if _apply(database, migration, seconds)]


def status(database: Database, migrations: Sequence[Migration]) -> list[MigrationStatus]:
    """Return which migrations were applied and when; change nothing."""
    applied: dict[int, float] = {}
    with suppress(DatabaseSchemaError):  # the table of the records does not exist either
        applied.update(database.read(_READ_APPLIED, {}))
    return [MigrationStatus(each.number, each.name, applied.get(each.number)) for each in migrations]


def check_applied(database: Database, migrations: Sequence[Migration]) -> None:
    """Raise ``DatabaseSchemaError`` if a migration is missing."""
    missing = [each for each in status(database, migrations) if each.applied_at is None]
    if missing:
        names = ", ".join(f"{each.number} ({each.name})" for each in missing)
        problem = f"migration {names} was" if len(missing) == 1 else f"migrations {names} were"
        raise DatabaseSchemaError(f"{database.address}: {problem} not run; run `comporta db migrate`")


def _apply(database: Database, migration: Migration, seconds: float) -> bool:
    with database.transaction(seconds) as execute:
        if database.dialect == "postgresql":
            execute(f"SELECT pg_advisory_xact_lock({_LOCK})")
        execute(getattr(_CREATE_RECORDS, database.dialect))
        if (migration.number,) in execute("SELECT number FROM comporta_migrations"):
            return False
        for text in getattr(migration, database.dialect):
            execute(text)
        _record(execute, migration, _CLOCK[database.dialect])
    return True


def _record(execute: Execute, migration: Migration, clock: str) -> None:
    name = migration.name.replace("'", "''")
    execute(f"INSERT INTO comporta_migrations VALUES ({migration.number}, '{name}', {clock})")  # noqa: S608 - our own constants
