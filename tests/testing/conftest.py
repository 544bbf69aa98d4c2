"""A client that hides nothing, and the proxy it goes through."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from comporta.testing import FaultProxy, Server
from comporta.testing.replies import Word, packed, read_reply

ANSWER_SECONDS = 30.0


class Client:
    """One connection, to say things and to see every byte that comes back."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS)
        self._replies = self.socket.makefile("rb")

    def send(self, *words: Word) -> None:
        self.socket.sendall(packed(*words))

    def read(self) -> Any:
        return read_reply(self._replies)

    def ask(self, *words: Word) -> Any:
        self.send(*words)
        return self.read()

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes for so long; neither bytes nor an end."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(ANSWER_SECONDS)
        return False

    def rest(self) -> bytes:
        """Return what comes before the connection is reset; an end in good order fails."""
        received = b""
        while True:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return received
            assert data, f"ended in good order after {received!r}"
            received += data

    def close(self) -> None:
        self._replies.close()
        self.socket.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    server.command("FLUSHALL")
    with FaultProxy.to(server) as started:
        yield started


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[Client]:
    """Give a connection that works already."""
    client = Client(proxy.port)
    assert client.ask("PING") == "PONG"
    yield client
    client.close()
