"""Opens the socket that all workers of a machine accept clients from.

It imports only ``socket``, so that a launcher can bind the port without loading the service.
"""

from __future__ import annotations

import socket
from typing import Final

BACKLOG: Final = 2048


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket that child processes inherit.

    It is created with the TCP protocol number, because asyncio disables Nagle's algorithm only then.
    """
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
