"""The one socket that all workers of a machine take clients from. Imports nothing that takes time to load."""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 2048


def listening(host: str, port: int) -> socket.socket:
    """Return a socket for processes to be started with; it says that it is TCP, so asyncio delays nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener
