"""Redis and Valkey servers for tests: what a test can do to them, and that they leave nothing behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from comporta.testing import Certificate, Server, find_servers
from comporta.testing.redis_server import wait_until
from comporta.testing.temp_directory import TempDirectory

SERVERS = find_servers()


@pytest.fixture(params=sorted(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    """Provide the program of each kind of server, for tests that start their own."""
    return SERVERS[request.param]


@pytest.fixture
def secure(tls_program: str) -> Iterator[Server]:
    with Server(tls_program, tls=True, password="secret") as started:  # noqa: S106 - it guards nothing
        yield started


def test_command__replies_of_every_kind__are_read(server: Server) -> None:
    server.command("FLUSHALL")
    assert server.command("SET", "k", b"\xff\0") == "OK"
    assert server.command("GET", "k").encode(errors="surrogateescape") == b"\xff\0"
    assert server.command("SET", "copy", server.command("GET", "k")) == "OK"
    assert server.command("INCRBYFLOAT", "f", 1.5) == "1.5"
    assert server.command("STRLEN", "copy") == 2
    assert server.command("GET", "none") is None
    assert server.command("BLPOP", "none", 0.01) is None
    assert server.command("MGET", "none", "f") == [None, "1.5"]
    assert server.command("EVAL", "return {1, {'a', {}}}", 0) == [1, ["a", []]]


def test_command__error_reply__raises_the_servers_text(server: Server) -> None:
    with pytest.raises(RuntimeError, match=r"^ERR unknown command"):
        server.command("NONSENSE")


def test_command__server_frozen__times_out_until_thawed(kind: str) -> None:
    with Server(kind) as server:
        server.freeze()
        with pytest.raises(TimeoutError):
            server.command("PING", timeout=0.1)
        server.thaw()
        assert server.command("PING") == "PONG"


def test_server__with_a_password__requires_it_and_has_it_in_the_url(kind: str) -> None:
    with Server(kind, password="secret") as server:  # noqa: S106 - it guards nothing
        assert server.command("PING") == "PONG"
        assert redis.Redis.from_url(server.url).ping() is True
        with pytest.raises(redis.AuthenticationError):
            redis.Redis.from_url(server.url.replace("secret", "wrong")).ping()


def test_url__password_with_special_characters__is_quoted() -> None:
    assert ":a%2Fb%40c@127.0.0.1:" in Server(password="a/b@c").url  # noqa: S106 - it guards nothing


def test_server__restarted__is_empty_on_the_same_port(kind: str) -> None:
    with Server(kind) as server:
        port = server.port
        server.command("SET", "k", "v")
        server.restart()
        assert server.port == port
        assert server.command("GET", "k") is None


def test_server__process_ended__starts_again(kind: str) -> None:
    with Server(kind) as server:
        with pytest.raises(ConnectionError):
            server.command("SHUTDOWN", "NOSAVE")
        assert server.process is not None
        server.process.wait(60)
        assert server.start().command("PING") == "PONG"


def test_server__stopped_while_frozen__shuts_down(kind: str) -> None:
    with Server(kind) as server:
        process = server.process
        server.freeze()
        server.stop()
        assert process is not None
        assert process.returncode == 0
        with pytest.raises(RuntimeError, match="is not running"):
            server.freeze()


def test_server__unknown_option__raises_with_its_log_and_leaves_nothing(kind: str) -> None:
    server = Server(kind, "--nonsense", "1")
    with pytest.raises(RuntimeError, match=r"did not start on port .*Bad directive"):
        server.start()
    assert server.process is None
    assert server._directory is None


def test_server__closed__removes_its_directory() -> None:
    with Server() as server:
        path = server._directory_path()
        assert (path / "log").exists()
    assert not path.exists()


def test_replica__started__has_the_primarys_data_and_refuses_writes(kind: str) -> None:
    with Server(kind, password="secret") as primary:  # noqa: S106 - it guards nothing
        primary.command("SET", "k", "v")
        with primary.replica(replica_serve_stale_data="no") as replica:
            assert replica.command("GET", "k") == "v"
            with pytest.raises(RuntimeError, match=r"^READONLY"):
                replica.command("SET", "k", "w")
            primary.kill()
            wait_until(
                lambda: _error(replica, "GET", "k").startswith("MASTERDOWN"),
                "the replica reports its primary as down",
                60,
            )


def test_replica__promoted__accepts_writes_independently(kind: str) -> None:
    with Server(kind) as primary, primary.replica() as replica:
        replica.promote()
        assert replica.command("SET", "k", "v") == "OK"
        assert primary.command("GET", "k") is None


def test_replica__restarted_after_the_primary_is_gone__is_empty(kind: str) -> None:
    with Server(kind) as primary:
        primary.command("SET", "k", "v")
        with primary.replica() as replica:
            primary.kill()
            replica.restart()
            assert replica.command("DBSIZE") == 0


def test_replica__server_not_running__leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.testing.redis_server._LINK_SECONDS", 0.05)
    started: list[Server] = []
    start = Server.start

    def start_and_note(server: Server) -> Server:
        started.append(server)
        return start(server)

    monkeypatch.setattr(Server, "start", start_and_note)
    with pytest.raises(TimeoutError, match="in sync with port"):
        Server().replica()
    assert [replica.process for replica in started] == [None]


def test_tls__client_that_trusts_the_ca__is_served(secure: Server) -> None:
    assert secure.url.startswith("rediss://:secret@127.0.0.1:")
    assert secure.command("PING") == "PONG"
    assert redis.Redis.from_url(secure.url, ssl_ca_certs=secure.ca_file).ping() is True
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        redis.Redis.from_url(secure.url).ping()


def test_tls__replica__syncs_over_tls(secure: Server) -> None:
    secure.command("SET", "k", "v")
    with secure.replica() as replica:
        assert replica.url.startswith("rediss://")
        assert replica.command("GET", "k") == "v"


def test_tls__server_without_tls__has_no_ca_file() -> None:
    with pytest.raises(RuntimeError, match="create it with tls=True"):
        _ = Server().ca_file


def test_tls__program_built_without__raises() -> None:
    with_tls = find_servers(tls=True)
    without = [program for name, program in SERVERS.items() if name not in with_tls]
    with pytest.raises(RuntimeError, match=r"did not start .*(TLS|tls)"):
        Server(without[0], tls=True).start()


def test_certificate__no_openssl__names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs the program openssl"):
        Certificate()


def test_certificate__openssl_fails__raises_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "openssl"
    program.write_text("#!/bin/sh\necho out of luck >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="openssl req failed: out of luck"):
        Certificate()


def test_temp_directory__garbage_collected__is_removed_but_not_by_a_child() -> None:
    directory = TempDirectory()
    path = directory.path
    child = os.fork()
    if child == 0:
        directory.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert path.exists()
    del directory
    gc.collect()
    assert not path.exists()


def _error(server: Server, *words: str) -> str:
    try:
        server.command(*words)
    except RuntimeError as error:
        return str(error)
    return ""
