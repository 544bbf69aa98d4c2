"""Opens and closes the socket that all workers of a machine accept clients from.

It imports only the standard library, so that a launcher can bind the port without loading the service.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

BACKLOG: Final = 2048

_SO_ATTACH_FILTER = 26
_TCP_FLAGS_OFFSET, _SYN_OR_ACK, _SYN = 13, 0x12, 0x02
_SYN_FILTER = (  # drops segments that have SYN and not ACK; see bpf(4)
    (0x30, 0, 0, _TCP_FLAGS_OFFSET),
    (0x54, 0, 0, _SYN_OR_ACK),
    (0x15, 0, 1, _SYN),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFF_FFFF),
)


def open_listener(host: str, port: int) -> socket.socket:
    """Return a listening socket that child processes inherit."""
    return _open_socket(host, port, listens=True)


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a socket that does not listen yet: clients are refused until a worker is ready and listens."""
    return _open_socket(host, port, listens=False)


def _open_socket(host: str, port: int, *, listens: bool) -> socket.socket:
    """Open a socket with the TCP protocol number, because asyncio disables Nagle's algorithm only then."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if listens:
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.set_inheritable(True)
    return listener


def ignore_new_clients(listener: socket.socket) -> None:
    """Let the kernel drop attempts to connect, in all processes that share the socket.

    Closing a socket resets the connections that wait in its queue. After this call the queue only shrinks, so
    the socket can be closed once the queue is empty. Clients try again after a second, and are then refused.
    Only Linux has such a filter.
    """
    if sys.platform != "linux":  # pragma: no cover - tested on Linux
        return
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in _SYN_FILTER))
    program = struct.pack("HL", len(_SYN_FILTER), ctypes.addressof(code))
    with suppress(OSError):  # a sandbox may forbid it
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def listener_url(listener: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"
