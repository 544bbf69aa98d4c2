"""Databases of each dialect with the tables of batches."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from comporta.database.base import Database
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.migrations import MIGRATIONS
from comporta.testing import PostgresServer

TABLES = (
    "batch_jobs, batch_chunks, batch_results, batch_sheets, batch_teams, batch_users, "
    "sheet_rows, sheet_headers"
)


@pytest.fixture(scope="session")
def batch_schema(postgres: PostgresServer) -> str:
    schema = f"b_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    database = open_database(postgres.schema_url(schema))
    migrate(database, MIGRATIONS)
    database.close()
    return schema


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty database with all tables, for each dialect."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/service.db?timeout=30"
        database = open_database(url)
        migrate(database, MIGRATIONS)
        database.close()
        return url
    server: PostgresServer = request.getfixturevalue("postgres")
    schema: str = request.getfixturevalue("batch_schema")
    tables = ", ".join(f"{schema}.{table}" for table in TABLES.split(", "))
    server.command(f"TRUNCATE {tables}")
    url = server.schema_url(schema)
    return f"{url}{'&' if '?' in url else '?'}timeout=30&connections=8"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Database]:
    """Return a SQLite database, for tests that need only one dialect."""
    opened = open_database(f"sqlite:///{tmp_path}/plain.db?timeout=30")
    migrate(opened, MIGRATIONS)
    yield opened
    opened.close()
