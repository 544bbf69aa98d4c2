"""An HTTP server that answers every request with what a test sets, and clients of all kinds for it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

import aiohttp
import anthropic
import boto3
import httpx
import httpx2
import openai
import requests
from botocore.config import Config

from comporta.testing.http_server import HttpRequest, HttpServer

TIMEOUT_SECONDS = 5.0

Call = Callable[[], Any]
"""Makes one request: a function, or a coroutine function."""


class AnsweringServer(HttpServer):
    """Answers with ``status``, ``headers`` and ``body``; counts the requests in ``requests``."""

    def __init__(self) -> None:
        super().__init__()
        self.status = 200
        self.headers: list[tuple[str, str]] = []
        self.body = b"{}"
        self.requests = 0

    def answer(self, status: int, *headers: tuple[str, str], code: str = "Code") -> None:
        """Set the answer from now on; the body is S3's of an error with this code, as JSON also has it."""
        self.status, self.headers = status, [("content-type", "application/json"), *headers]
        self.body = json.dumps({"error": {"type": code, "message": "text"}}).encode()

    def answer_as_s3(self, status: int, code: str, *headers: tuple[str, str]) -> None:
        """Set an error of S3 as the answer from now on."""
        self.status, self.headers = status, [("content-type", "application/xml"), *headers]
        self.body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>text</Message></Error>".encode()

    async def _respond(self, request: HttpRequest) -> bytes:
        self.requests += 1
        fields = [*self.headers, ("content-length", str(len(self.body)))]
        head = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"HTTP/1.1 {self.status} -\r\n{head}\r\n".encode() + self.body


def aws_client(service: str, url: str) -> Any:
    """Return a client of boto3 that makes no retries of its own."""
    config = Config(
        connect_timeout=TIMEOUT_SECONDS,
        read_timeout=TIMEOUT_SECONDS,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
    )
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="id",
        aws_secret_access_key="key",  # noqa: S106 - not a secret
        config=config,
    )


@contextmanager
def _httpx(url: str, package: Any) -> Iterator[Call]:
    with package.Client(trust_env=False, verify=False, timeout=TIMEOUT_SECONDS) as client:
        yield lambda: client.get(url).raise_for_status()


@contextmanager
def _requests(url: str) -> Iterator[Call]:
    with requests.Session() as session:
        session.trust_env = False

        def get() -> requests.Response:
            response = session.get(url, timeout=TIMEOUT_SECONDS)
            response.raise_for_status()
            return response

        yield get


@contextmanager
def _urllib(url: str) -> Iterator[Call]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get() -> bytes:
        try:
            with opener.open(url, timeout=TIMEOUT_SECONDS) as response:
                content: bytes = response.read()
        except HTTPError as error:
            error.close()  # it holds the connection
            raise
        return content

    yield get


@contextmanager
def _aiohttp(url: str) -> Iterator[Call]:
    async def get() -> bytes:
        timeout = aiohttp.ClientTimeout(TIMEOUT_SECONDS)
        async with (
            aiohttp.ClientSession(raise_for_status=True, timeout=timeout) as session,
            session.get(url) as response,
        ):
            return await response.read()

    yield get


@contextmanager
def _boto3(url: str) -> Iterator[Call]:
    client = aws_client("s3", url)
    yield lambda: client.get_object(Bucket="bucket", Key="key")
    client.close()


@contextmanager
def _sdk(url: str, make: Callable[..., Any]) -> Iterator[Call]:
    with make(base_url=url, api_key="key", max_retries=0, timeout=TIMEOUT_SECONDS) as client:
        yield lambda: client.models.retrieve("model")


@contextmanager
def _async_sdk(url: str, make: Callable[..., Any]) -> Iterator[Call]:
    async def retrieve() -> Any:
        async with make(base_url=url, api_key="key", max_retries=0, timeout=TIMEOUT_SECONDS) as client:
            return await client.models.retrieve("model")

    yield retrieve


CLIENTS: dict[str, Callable[[str], Any]] = {
    "httpx": lambda url: _httpx(url, httpx),
    "httpx2": lambda url: _httpx(url, httpx2),
    "requests": _requests,
    "urllib": _urllib,
    "aiohttp": _aiohttp,
    "boto3": _boto3,
    "openai": lambda url: _sdk(url, openai.OpenAI),
    "openai-awaiting": lambda url: _async_sdk(url, openai.AsyncOpenAI),
    "anthropic": lambda url: _sdk(url, anthropic.Anthropic),
    "anthropic-awaiting": lambda url: _async_sdk(url, anthropic.AsyncAnthropic),
}
"""For each client a function that makes a call for a URL; the call raises the client's own error."""
