"""TLS on every machine: where no server was built to speak it, somebody in front of one does."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from comporta.errors import StateUnavailableError
from comporta.stores.records import Read, Write
from comporta.stores.redis import RedisStore
from comporta.testing import Server
from comporta.testing.certificates import Certificate


class Front:
    """Speaks TLS to clients and hands what they say to a server, on a thread of its own."""

    def __init__(self, server: Server, certificate: Certificate) -> None:
        self._port = server.port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.cert_file, certificate.key_file)
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._listens.wait(60)

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port: int = listening.sockets[0].getsockname()[1]
        self._listens.set()
        await self._over.wait()
        listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(_handed_on(reader, to_server), _handed_on(from_server, writer))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)


async def _handed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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
    with closing(Front(valkey, certificate)) as front:
        yield front.port


def test_tls__certificate_that_is_trusted__is_used_on_both_faces(port: int, certificate: Certificate) -> None:
    url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate.ca_file}"

    async def story(store: RedisStore) -> None:
        assert await store.apply_async(Read("tls", "k")) == b"x"
        await store.aclose()

    with closing(RedisStore(url, timeout=5, connect_timeout=5)) as store:
        assert store.apply(Write("tls", "k", b"x", 60))
        asyncio.run(story(store))


def test_tls__certificate_that_is_not_trusted__is_refused_with_a_reason(port: int) -> None:
    with (
        closing(RedisStore(f"rediss://127.0.0.1:{port}/0", timeout=5, connect_timeout=5)) as store,
        pytest.raises(StateUnavailableError, match="certificate verify failed"),
    ):
        store.apply(Read("tls", "k"))
