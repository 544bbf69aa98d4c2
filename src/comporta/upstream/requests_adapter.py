"""An adapter for the requests library: every request of a session goes through an upstream.

An attempt lasts until the body of its response has ended. Without ``stream=True`` the adapter reads the body
inside the attempt, so that one that breaks off is retried. The time-outs of requests bound single reads of
the socket; the adapter adds the bound on the whole attempt.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import requests
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse, Timeout
from urllib3.exceptions import ReadTimeoutError

from comporta.upstream.body import OpenBody, ReadTimer
from comporta.upstream.call_state import CallTraits
from comporta.upstream.client_errors import client_error, is_ours
from comporta.upstream.replay import replay_rule

if TYPE_CHECKING:
    from comporta.upstream.upstream import Upstream

_CHUNK_BYTES = 65_536


class UpstreamAdapter(HTTPAdapter):
    """An adapter to mount in a session: ``session.mount("https://…", upstream.sync.adapter())``.

    With ``repeat``, requests of every method are retried, not only those of idempotent methods. The other
    options are those of ``HTTPAdapter``.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        repeat: bool = False,
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
    ) -> None:
        super().__init__(pool_connections=pool_connections, pool_maxsize=pool_maxsize, pool_block=pool_block)
        self._upstream = upstream
        self._repeat = repeat

    def send(  # noqa: PLR0917 - the signature of the base class
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        """Send a request through the upstream; the report of the call is ``response.comporta``."""
        has_fixed_body = request.body is None or isinstance(request.body, bytes | str)
        replay = replay_rule(
            str(request.method),
            request.headers,
            has_fixed_body=has_fixed_body,
            wish=self._repeat or None,
        )
        options = {"stream": stream, "verify": verify, "cert": cert, "proxies": proxies}
        call = self._upstream._prepare(
            self._attempt,
            (request, timeout),
            options,
            CallTraits(*replay, _has_open_body, Response),
        )
        try:
            response: Response = call.execute()
        except Exception as error:
            if not is_ours(error):
                raise
            base = requests.RequestException
            raise client_error(error, base, request=request, response=None) from error.__cause__
        response.comporta = call.report  # type: ignore[attr-defined]  # an extra attribute
        if call.is_body_open:
            raw: Any = response.raw
            raw.open(call)
        return response

    def _attempt(self, request: PreparedRequest, timeout: Any, *, stream: bool, **options: Any) -> Response:
        timer = ReadTimer(self._upstream._options.timeout)
        response = super().send(request, stream=stream, timeout=_shorten(timeout, timer), **options)
        response.raw = RawBody(response.raw, timer)
        if not stream:
            try:
                response.content  # noqa: B018 - reads the body and keeps it
            except BaseException:
                response.close()
                raise
        return response


class RawBody:
    """The ``raw`` of a response: a urllib3 response whose reads are bounded and observed.

    Each read takes what the socket has, so that the time is checked however slowly the body arrives.
    """

    def __init__(self, inner: HTTPResponse, timer: ReadTimer) -> None:
        self._inner = inner
        self._timer = timer
        self._body: OpenBody | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def decode_content(self) -> bool:
        """Whether reads decompress the body by default; programs set it before they copy the body."""
        return bool(self._inner.decode_content)

    @decode_content.setter
    def decode_content(self, value: bool) -> None:
        self._inner.decode_content = value

    @property
    def data(self) -> bytes:
        """The rest of the body."""
        return self.read()

    def __iter__(self) -> Iterator[bytes]:
        return HTTPResponse.__iter__(self)  # type: ignore[arg-type]  # it splits what stream() yields

    @property
    def has_ended(self) -> bool:
        """Whether no more bytes will come."""
        return self._inner.closed or self._inner.length_remaining == 0

    def open(self, call: Any) -> None:
        """Start to observe the body: the call is concluded when it has ended."""
        self._body = OpenBody(call, self._timer, self._timeout_error)

    def read(
        self, amt: int | None = None, decode_content: bool | None = None, cache_content: bool = False
    ) -> bytes:
        """Read ``amt`` bytes, or all; fewer only at the end of the body."""
        wanted = -1 if amt is None else amt
        parts: list[bytes] = []
        while wanted:
            part = self.read1(wanted if wanted > 0 else _CHUNK_BYTES, decode_content)
            if not part:
                break
            parts.append(part)
            wanted -= len(part) if wanted > 0 else 0
        return b"".join(parts)

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        """Read up to ``amt`` bytes that have arrived; none at the end of the body."""
        # without a size, urllib3 does not notice that the body is incomplete
        step = partial(self._read_part, amt or _CHUNK_BYTES, decode_content)
        try:
            part = self._read_in_time(step) if self._body is None else self._body.read(step)
        except StopIteration:
            return b""
        except BaseException:
            self._inner.close()  # as urllib3 does after an error of the socket
            raise
        if self._body is not None and self.has_ended:
            self._body.finish()
        return part

    def _read_in_time(self, step: partial[bytes]) -> bytes:
        try:
            self._timer.require_time()
        except TimeoutError as error:
            raise self._timeout_error(str(error)) from None
        return step()

    def _read_part(self, amt: int, decode_content: bool | None) -> bytes:
        self._shorten_socket_timeout()
        read = getattr(self._inner, "read1", self._inner.read)  # urllib3 1 has no read1
        part: bytes = read(amt, decode_content=decode_content)
        if not part:
            raise StopIteration
        return part

    def _shorten_socket_timeout(self) -> None:
        """Cut the socket's time-out to the time left; a connection that will close has no socket here."""
        sock = getattr(self._inner.connection, "sock", None)
        if sock is not None:
            sock.settimeout(self._timer.shorten(sock.gettimeout()))

    def readinto(self, buffer: bytearray | memoryview) -> int:
        """Read into a buffer; return how many bytes."""
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def stream(self, amt: int | None = _CHUNK_BYTES, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the rest of the body in parts of ``amt`` bytes; ``None``: as they arrive."""
        while part := self.read1(None, decode_content) if amt is None else self.read(amt, decode_content):
            yield part

    def close(self) -> None:
        """Close the connection and conclude the call."""
        try:
            self._inner.close()
        finally:
            self._finish()

    def release_conn(self) -> None:
        """Give the connection back to its pool and conclude the call."""
        try:
            self._inner.release_conn()
        finally:
            self._finish()

    def _finish(self) -> None:
        if self._body is not None:
            self._body.finish()

    def _timeout_error(self, message: str) -> Exception:
        pool: Any = None
        return ReadTimeoutError(pool, str(self._inner.geturl()), message)


def _has_open_body(response: Response) -> bool:
    raw: Any = response.raw
    return not raw.has_ended


def _shorten(timeout: Any, timer: ReadTimer) -> Any:
    """Return a time-out of the requests library whose total is bounded by the time left."""
    if timer.seconds is None:
        return timeout
    if isinstance(timeout, Timeout):
        shortened = timeout.clone()
    elif isinstance(timeout, tuple) and len(timeout) == 2:
        shortened = Timeout(connect=timeout[0], read=timeout[1])
    elif isinstance(timeout, tuple):
        return timeout  # requests says what is wrong with it
    else:
        shortened = Timeout(connect=timeout, read=timeout)
    total: Any = shortened.total
    shortened.total = timer.shorten(total)
    return shortened
