"""Whom the service trusts when it calls a portal over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator

import httpx2
import pytest

from comporta.service.sources.portal import http_client, tls_context
from comporta.testing.certificates import Certificate

RESPONSE = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"


@pytest.fixture
def certificate() -> Iterator[Certificate]:
    tls_context.cache_clear()
    yield Certificate()
    tls_context.cache_clear()


async def status_of_portal(certificate: Certificate) -> int:
    """Serve one response over TLS, and return its status as the service sees it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(RESPONSE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0, ssl=context)
    async with server, http_client(httpx2.AsyncHTTPTransport(verify=tls_context()), 30) as client:
        port = server.sockets[0].getsockname()[1]
        return (await client.get(f"https://localhost:{port}/")).status_code


def test_tls_context__authority_named_by_the_environment__is_trusted(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificate.ca_file)
    assert asyncio.run(status_of_portal(certificate)) == 204


def test_tls_context__unknown_authority__is_refused(certificate: Certificate) -> None:
    with pytest.raises(httpx2.ConnectError, match="certificate verify failed"):
        asyncio.run(status_of_portal(certificate))
