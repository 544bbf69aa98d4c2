"""TLS on every machine: a proxy terminates it, because many servers are built without it."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from comporta.errors import StateUnavailableError
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.redis.store import RedisStore
from comporta.testing import Server
from comporta.testing.certificates import Certificate


class TlsProxy:
    """Terminates TLS and passes the bytes to a server, on a background thread."""

    def __init__(self, server: Server, certificate: Certificate) -> None:
        self._port = server.port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.cert_file, certificate.key_file)
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._is_listening.wait(60)

    async def _run(self) -> None:
        self._loop, self._closed = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        await self._closed.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_copy(reader, to_server), _copy(from_server, writer))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed.set)
        self._thread.join(60)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # the other side is gone
    finally:
        writer.close()


@pytest.fixture
def certificate() -> Certificate:
    return Certificate()


@pytest.fixture
def port(valkey: Server, certificate: Certificate) -> Iterator[int]:
    with closing(TlsProxy(valkey, certificate)) as proxy:
        yield proxy.port


def test_tls__trusted_certificate__works_for_blocking_and_awaiting_callers(
    port: int, certificate: Certificate
) -> None:
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate.ca_file}"

    async def story(store: RedisStore) -> None:
        assert await store.apply_async(ReadRecord("tls", "k")) == b"x"
        await store.aclose()

    with closing(RedisStore(url, timeout=5, connect_timeout=5)) as store:
        assert store.apply(WriteRecord("tls", "k", b"x", 60))
        asyncio.run(story(store))


def test_tls__untrusted_certificate__is_refused_with_a_reason(port: int) -> None:
    with (
        closing(RedisStore(f"rediss://127.0.0.1:{port}/0", timeout=5, connect_timeout=5)) as store,
        pytest.raises(StateUnavailableError, match="certificate verify failed"),
    ):
        store.apply(ReadRecord("tls", "k"))
