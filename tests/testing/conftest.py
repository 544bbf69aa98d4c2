"""A client that shows every byte, and the proxy that it connects through."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from comporta.testing import FaultProxy, Server
from comporta.testing.resp import Word, encode_command, read_reply

REPLY_SECONDS = 30.0


class Client:
    """One connection that sends commands and shows every byte of the replies."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), REPLY_SECONDS)
        self._replies = self.socket.makefile("rb")

    def send(self, *words: Word) -> None:
        self.socket.sendall(encode_command(*words))

    def read(self) -> Any:
        return read_reply(self._replies)

    def request(self, *words: Word) -> Any:
        self.send(*words)
        return self.read()

    def is_silent(self, seconds: float = 0.1) -> bool:
        """Return whether nothing arrives for ``seconds``: neither bytes nor the end of the connection."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(REPLY_SECONDS)
        return False

    def rest(self) -> bytes:
        """Return the bytes that arrive before the connection is reset; an orderly end fails the test."""
        received = b""
        while True:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return received
            assert data, f"the connection was closed, not reset, after {received!r}"
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
    """Provide a connection that has been used successfully."""
    client = Client(proxy.port)
    assert client.request("PING") == "PONG"
    yield client
    client.close()
