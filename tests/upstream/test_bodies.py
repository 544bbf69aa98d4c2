"""An attempt ends when its body ends, for all HTTP clients."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import aiohttp
import httpx2
import pytest
import requests
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.test_utils import TestServer
from tests.support import assert_within, wait_until, within
from tests.upstream.body_server import PART, WHOLE, BodyServer
from tests.upstream.clients import KINDS, Client, Stream
from urllib3 import Timeout

from comporta import BreakerConfig, LimitReachedError, Outcome, Retry, Upstream
from comporta.errors import StateUnavailableError
from comporta.flow import Flow, Perform
from comporta.metrics import InMemoryMetrics
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.upstream.body import ReadTimer

MakeClient = Callable[..., tuple[Client, Upstream]]

TIMEOUT = 0.3
BUFFERING = tuple(kind for kind in KINDS if kind != "requests")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    param: str = request.param
    return param


@pytest.fixture
def server() -> Iterator[BodyServer]:
    with BodyServer() as server:
        yield server


@pytest.fixture
def make_client(kind: str) -> Iterator[MakeClient]:
    """Make a client of an upstream that retries without delay."""
    with ExitStack() as ends:

        def make(
            *, patience: float | None = None, buffer_body: int | None = None, view: Any = None, **options: Any
        ) -> tuple[Client, Upstream]:
            quick = Retry(base=0.0, jitter=(0, 0), state="memory://")
            given = {"retry": quick, "state": f"memory://{uuid.uuid4().hex}", **options}
            upstream = Upstream("bodies", "10000/s", **given)
            used = upstream if view is None else upstream.options(**view)
            client = Client(kind, used, timeout=patience, buffer_body=buffer_body)
            return ends.enter_context(client), upstream

        yield make


def failures(upstream: Upstream) -> int:
    breaker = upstream.sync.get_state().breaker
    assert breaker is not None
    return breaker.failures


def phase(upstream: Upstream) -> str:
    breaker = upstream.sync.get_state().breaker
    assert breaker is not None
    return breaker.phase


def in_flight(upstream: Upstream) -> int | None:
    return upstream.sync.get_state().calls_in_flight


def open_circuit(upstream: Upstream) -> None:
    """Bring a circuit with no cooldown to where its next call is the probe."""
    assert upstream.breaker is not None
    upstream.breaker.sync.record_failure()
    wait_until(lambda: phase(upstream) == "half_open")


SENSITIVE = BreakerConfig(threshold=1, cooldown_seconds=0.05, probes=1)


@pytest.mark.unmeasured
@pytest.mark.parametrize("body", ["reset", "cut", "cut_chunk"])
def test_body__breaks_off__counts_as_a_failure_and_the_error_is_raised(
    make_client: MakeClient, server: BodyServer, body: str
) -> None:
    client, upstream = make_client(max_concurrent=1, retry=False)
    server.bodies = [body]
    with pytest.raises(client.error):
        client.send(server.url)
    assert (failures(upstream), in_flight(upstream)) == (1, 0)
    assert client.send(server.url).text == WHOLE.decode()
    assert failures(upstream) == 0


@pytest.mark.parametrize("body", ["reset", "stall"])
def test_body__fails_while_it_is_streamed__the_report_says_so(
    make_client: MakeClient, server: BodyServer, metrics: InMemoryMetrics, body: str
) -> None:
    client, upstream = make_client(max_concurrent=1, timeout=TIMEOUT)
    server.bodies = [body]
    stream = client.open(server.url)
    assert stream.read().startswith(PART[:10])
    assert (stream.report.outcome, failures(upstream), in_flight(upstream)) == ("ok", 0, 1)
    assert metrics.value("upstream_calls", upstream="bodies", outcome="failure") == 0
    with pytest.raises(client.error):
        stream.read_all()
    assert (stream.report.outcome, failures(upstream), in_flight(upstream)) == ("failure", 1, 0)
    assert metrics.value("upstream_calls", upstream="bodies", outcome="failure") == 1
    stream.close()
    assert failures(upstream) == 1


@pytest.mark.parametrize("body", ["stall", "silent", "dribble", "dribble_chunks"])
def test_timeout__body_or_headers_are_late__the_call_takes_at_most_twice_as_long(
    make_client: MakeClient, server: BodyServer, body: str
) -> None:
    client, upstream = make_client(timeout=TIMEOUT, retry=False)
    server.bodies = [body]
    started = time.monotonic()
    with pytest.raises(client.error):
        client.send(server.url)
    assert_within(time.monotonic() - started, 2 * TIMEOUT)
    assert failures(upstream) == 1


def test_timeout__client_has_a_shorter_one__it_stays(make_client: MakeClient, server: BodyServer) -> None:
    client, upstream = make_client(timeout=30, patience=0.1, retry=False)
    server.bodies = ["stall", "silent"]
    for _ in range(2):
        started = time.monotonic()
        with pytest.raises((client.error, TimeoutError)):
            client.send(server.url)
        assert_within(time.monotonic() - started, 5)
    assert failures(upstream) == 2


def test_timeout__caller_is_slow_between_reads__its_time_does_not_count(
    make_client: MakeClient, server: BodyServer
) -> None:
    client, _ = make_client(timeout=TIMEOUT)
    stream = client.open(server.url)
    first = stream.read()
    until = time.monotonic() + 1.5 * TIMEOUT
    wait_until(lambda: time.monotonic() > until)
    assert first + stream.read_all() == WHOLE


def test_options__no_timeout__an_endless_stream_is_read(make_client: MakeClient, server: BodyServer) -> None:
    server.bodies = ["events", "events"]
    bounded, _ = make_client(timeout=TIMEOUT, retry=False)
    with pytest.raises(bounded.error):
        bounded.open(server.url).read_all()
    client, upstream = make_client(timeout=TIMEOUT, view={"timeout": None})
    assert client.open(server.url).read_all().count(b"data: ") == 3
    assert failures(upstream) == 0


def test_streams__more_than_max_concurrent__wait_for_the_end_of_a_body(
    make_client: MakeClient, server: BodyServer
) -> None:
    client, upstream = make_client(max_concurrent=2, max_wait=0)
    server.bodies = ["stall", "stall"]
    streams = [client.open(server.url) for _ in range(2)]
    with pytest.raises(LimitReachedError, match="2 calls are in flight"):
        client.open(server.url)
    server.release()
    assert [stream.read_all() for stream in streams] == [WHOLE] * 2
    wait_until(lambda: in_flight(upstream) == 0)
    assert client.send(server.url).status == 200


@pytest.mark.unmeasured
def test_streams__ten_at_once_under_max_concurrent_two__are_two_in_flight(
    kind: str, server: BodyServer
) -> None:
    state = f"memory://{uuid.uuid4().hex}"
    upstream = Upstream("bodies", "10000/s", max_concurrent=2, max_wait=30, state=state)
    lengths: list[int] = []

    def work() -> None:
        with Client(kind, upstream, timeout=30) as client:
            lengths.append(len(client.open(server.url).read_all()))

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lengths == [len(WHOLE)] * 10
    assert server.most_in_flight <= 2
    wait_until(lambda: in_flight(upstream) == 0)


def test_success__body_is_open__is_reported_when_it_has_ended(
    make_client: MakeClient, server: BodyServer
) -> None:
    client, upstream = make_client(breaker=SENSITIVE)
    open_circuit(upstream)
    server.bodies = ["stall"]
    stream = client.open(server.url)
    stream.read()
    assert phase(upstream) == "half_open"
    server.release()
    stream.read_all()
    wait_until(lambda: phase(upstream) == "closed")


def test_success__small_or_empty_body__is_reported(make_client: MakeClient, server: BodyServer) -> None:
    client, upstream = make_client(max_concurrent=1, breaker=SENSITIVE)
    open_circuit(upstream)
    server.bodies = ["small", "empty"]
    assert client.send(server.url).text == "body"
    wait_until(lambda: phase(upstream) == "closed")
    stream = client.open(server.url)
    assert stream.read_all() == b""
    stream.close()
    wait_until(lambda: in_flight(upstream) == 0)


def test_body__closed_by_the_caller__counts_as_a_success(make_client: MakeClient, server: BodyServer) -> None:
    client, upstream = make_client(max_concurrent=1, breaker=SENSITIVE)
    open_circuit(upstream)
    server.bodies = ["stall"]
    stream = client.open(server.url)
    stream.read()
    stream.close()
    wait_until(lambda: in_flight(upstream) == 0)
    assert (phase(upstream), stream.report.outcome) == ("closed", "ok")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("reads", [0, 1])
def test_body__response_is_collected__releases_the_permit(
    make_client: MakeClient, server: BodyServer, reads: int
) -> None:
    client, upstream = make_client(max_concurrent=1)
    server.bodies = ["stall"]
    stream = client.open(server.url)
    for _ in range(reads):
        stream.read()
    assert in_flight(upstream) == 1
    stream.drop()
    wait_until(lambda: in_flight(upstream) == 0)
    server.release()


def test_body__read_is_cancelled__counts_as_neither(make_client: MakeClient, server: BodyServer) -> None:
    client, upstream = make_client(max_concurrent=1, breaker=SENSITIVE)
    if client.is_blocking:
        return
    open_circuit(upstream)
    server.bodies = ["stall"]
    stream = client.open(server.url)
    stream.read()

    async def cancel_the_read() -> None:
        task = asyncio.ensure_future(stream.read_async())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client.run(cancel_the_read())
    wait_until(lambda: in_flight(upstream) == 0)
    assert (phase(upstream), stream.report.outcome) == ("half_open", "cancelled")
    stream.close()


def test_body__of_a_failed_answer__holds_the_permit_and_counts_once(
    make_client: MakeClient, server: BodyServer
) -> None:
    client, upstream = make_client(max_concurrent=1, retry=False)
    server.bodies = ["broken_reset"]
    stream = client.open(server.url)
    assert failures(upstream) == 1
    with pytest.raises(client.error):
        stream.read_all()
    stream.close()
    wait_until(lambda: in_flight(upstream) == 0)
    assert (failures(upstream), stream.report.reason) == (1, "500")


def test_permit__body_is_open_for_long__is_renewed(
    make_client: MakeClient, server: BodyServer, clock: ManualClock
) -> None:
    client, upstream = make_client(
        max_concurrent=1, permit_ttl=0.3, timeout=None, max_wait=0, state=MemoryStore(clock)
    )
    permits = upstream.permits
    assert permits is not None
    server.bodies = ["stall"]
    stream = client.open(server.url)
    for _ in range(4):
        clock.advance(0.25)
        wait_until(lambda: all(holder.seconds_left > 0.25 for holder in permits.sync.holders()))
        assert in_flight(upstream) == 1
    with pytest.raises(LimitReachedError):
        client.open(server.url)
    server.release()
    assert stream.read_all() == WHOLE
    wait_until(lambda: in_flight(upstream) == 0)


@pytest.mark.parametrize("body", ["reset", "cut_chunk", "stall"])
def test_retry__body_breaks_off__only_a_body_that_is_read_first_is_retried(
    make_client: MakeClient, server: BodyServer, kind: str, body: str
) -> None:
    client, upstream = make_client(timeout=TIMEOUT, max_concurrent=1, buffer_body=10_000_000)
    server.bodies = [body]
    answer = client.send(server.url)
    assert (answer.text, answer.report.attempts) == (WHOLE.decode(), 2)
    assert (failures(upstream), in_flight(upstream)) == (0, 0)
    if kind != "requests":
        streaming, _ = make_client(timeout=TIMEOUT)
        server.bodies = [body]
        with pytest.raises(client.error):
            streaming.send(server.url)
        assert len(server.requests) == 3


@pytest.mark.parametrize("kind", BUFFERING)
def test_buffer_body__body_is_larger__is_streamed_on_and_not_retried(
    make_client: MakeClient, server: BodyServer
) -> None:
    client, upstream = make_client(buffer_body=500, max_concurrent=1)
    server.bodies = ["stall"]
    stream = client.open(server.url)
    assert in_flight(upstream) == 1
    server.release()
    assert stream.read_all() == WHOLE
    server.bodies = ["reset"]
    with pytest.raises(client.error):
        client.send(server.url)
    assert (failures(upstream), len(server.requests)) == (1, 2)


@pytest.mark.parametrize("kind", BUFFERING)
def test_buffer_body__body_fits__the_response_has_it(make_client: MakeClient, server: BodyServer) -> None:
    client, upstream = make_client(buffer_body=len(WHOLE), max_concurrent=1)
    stream = client.open(server.url)
    assert in_flight(upstream) == 0
    assert stream.read_all() == WHOLE
    assert client.send(server.url).text == WHOLE.decode()


@pytest.mark.parametrize("size", [0, -1, 1 << 31])
def test_buffer_body__out_of_range__raises(size: int) -> None:
    upstream = Upstream("bodies", "10/s", state="memory://")
    for make in (upstream.transport, upstream.sync.transport, upstream.middleware):
        with pytest.raises(ValueError, match="buffer_body must be 1 to 1073741824, got"):
            make(buffer_body=size)


def test_requests__raw_is_read_like_a_file__gives_the_same_bytes(server: BodyServer) -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    with Client("requests", upstream, timeout=5) as client:
        raw = client.open(server.url).response.raw
        head = bytearray(7)
        assert raw.readinto(head) == 7
        assert bytes(head) + raw.read(3) + b"".join(raw) == WHOLE
        assert in_flight(upstream) == 0
        stream: Stream = client.open(server.url)
        assert stream.response.raw.read() == WHOLE
        raw = client.open(server.url).response.raw
        assert raw.readable()
        raw.release_conn()
        assert in_flight(upstream) == 0


def test_aiohttp__every_way_to_read__gives_the_same_bytes(server: BodyServer) -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    with Client("aiohttp-awaiting", upstream, timeout=5) as client:

        async def read_all_ways() -> None:
            session = client._client
            for read in (
                lambda content: content.read(),
                lambda content: content.readexactly(len(WHOLE)),
                lambda content: _join(content.iter_chunked(1000)),
                lambda content: _join(content.iter_any()),
                lambda content: _join(part async for part, _ in content.iter_chunks()),
            ):
                async with session.get(server.url) as response:
                    assert repr(response.content).startswith("<StreamReader")
                    assert await read(response.content) == WHOLE
                    assert response.content.at_eof()
            server.bodies = ["events"]
            async with session.get(server.url) as response:
                assert await response.content.readline() == b"data: 0\n"
                assert await response.content.readuntil(b"1\n") == b"\ndata: 1\n"
                await response.content.wait_eof()
                assert response.content.total_bytes == 27
            server.bodies = ["small"] * 2
            async with session.get(server.url) as response:
                with pytest.raises(asyncio.IncompleteReadError):
                    await response.content.readexactly(5)
            async with session.get(server.url) as response:
                assert await response.content.readany() == b"body"
            async with session.get(server.url) as response:
                with pytest.raises(LineTooLong):
                    await response.content.readuntil(b"no such text", max_size=10)

        client.run(read_all_ways())
        wait_until(lambda: in_flight(upstream) == 0)
        assert failures(upstream) == 0


async def _join(parts: Any) -> bytes:
    return b"".join([part async for part in parts])


def test_aiohttp__only_the_content_is_kept__it_can_be_read(server: BodyServer) -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    with Client("aiohttp-awaiting", upstream, timeout=5) as client:

        async def read_content() -> bytes:
            content = (await client._client.get(server.url)).content
            gc.collect()
            read: bytes = await content.read()
            return read

        assert client.run(read_content()) == WHOLE


def test_aiohttp__websocket__holds_its_permit_until_it_is_closed() -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")

    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(await socket.receive_str())
        await socket.receive()
        return socket

    async def main() -> None:
        application = web.Application()
        application.router.add_get("/", echo)
        async with (
            TestServer(application) as server,
            aiohttp.ClientSession(middlewares=[upstream.middleware()]) as session,
            session.ws_connect(server.make_url("/")) as socket,
        ):
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
            assert in_flight(upstream) == 1

    asyncio.run(main())
    wait_until(lambda: in_flight(upstream) == 0)
    assert failures(upstream) == 0


def test_classify__raises_at_the_end_of_a_body__its_error_is_raised_and_nothing_is_held(
    make_client: MakeClient, server: BodyServer
) -> None:
    def classify(_: Any, error: Exception | None) -> Outcome:
        if error is not None:
            raise RuntimeError("confused")
        return Outcome("ok")

    client, upstream = make_client(max_concurrent=1, classify=classify)
    server.bodies = ["reset"]
    stream = client.open(server.url)
    with pytest.raises(RuntimeError, match="confused"):
        stream.read_all()
    assert in_flight(upstream) == 0
    stream.close()


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_timeouts__of_a_blocking_transport__are_cut_to_the_time_left(package: Any) -> None:
    module: Any = import_module(package)
    seen: list[Any] = []

    def answer(request: Any) -> Any:
        timeouts = request.extensions["timeout"]
        seen.append([timeouts[name] for name in ("connect", "read", "write")] + [timeouts.get("pool")])
        return module.Response(200)

    upstream = Upstream("bodies", "1000/s", timeout=2, state=f"memory://{uuid.uuid4().hex}")
    transport = upstream.sync.transport(module.MockTransport(answer), client=package)
    with module.Client(transport=transport, timeout=module.Timeout(None, connect=0.5, read=9)) as client:
        client.get("http://127.0.0.1/")
    [[connect, read, write, pool]] = seen
    assert connect == 0.5
    assert all(1 < value <= 2 for value in (read, write, pool))
    unbounded = upstream.options(timeout=None).sync.transport(module.MockTransport(answer), client=package)
    with module.Client(transport=unbounded, timeout=7) as client:
        client.get("http://127.0.0.1/")
    assert seen[1] == [7, 7, 7, 7]


@pytest.mark.parametrize("timeout", [None, 5, (5, 5), Timeout(5), Timeout(connect=5, total=4)])
def test_timeouts__of_requests_in_all_its_forms__are_cut_to_the_time_left(
    server: BodyServer, timeout: Any
) -> None:
    upstream = Upstream("bodies", "1000/s", timeout=TIMEOUT, retry=False, state="memory://")
    server.bodies = ["silent"]
    session = requests.Session()
    session.mount("http://", upstream.sync.adapter())
    with pytest.raises(requests.ReadTimeout), within(5):
        session.get(server.url, timeout=timeout)
    with pytest.raises(ValueError, match="Invalid timeout"):
        session.get(server.url, timeout=(1, 2, 3))  # type: ignore[arg-type]  # wrong on purpose
    session.close()


@pytest.mark.parametrize("package", ["httpx2", "httpx"])
def test_async_transport__other_streams_and_answers__are_accepted(package: Any) -> None:
    module: Any = import_module(package)

    class Parts:
        """An iterator that is not a generator."""

        def __init__(self) -> None:
            self._parts = [b"one", b"two"]

        def __aiter__(self) -> Parts:
            return self

        async def __anext__(self) -> bytes:
            if not self._parts:
                raise StopAsyncIteration
            return self._parts.pop(0)

    class Plain(module.AsyncByteStream):  # type: ignore[misc]  # imported at run time
        def __aiter__(self) -> Parts:
            return Parts()

    async def main() -> None:
        for stream in ({"stream": Plain()}, {"content": b"onetwo"}):
            inner = module.MockTransport(lambda _, given=stream: module.Response(200, **given))
            transport = upstream.transport(inner, client=package)
            async with module.AsyncClient(transport=transport) as client:
                assert (await client.get("http://127.0.0.1/")).content == b"onetwo"

    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    asyncio.run(main())
    assert in_flight(upstream) == 0


def test_aiohttp__body_arrives_while_the_attempt_is_reported__the_call_is_concluded(
    server: BodyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    server.bodies = ["late"]

    def report_slowly(call: Any) -> Flow[None]:
        yield Perform(lambda: None, call.answer.content.wait_eof)

    monkeypatch.setattr("comporta.upstream.flows.report_to_limit_flow", report_slowly)
    with Client("aiohttp-awaiting", upstream) as client:
        stream = client.open(server.url)
        wait_until(lambda: in_flight(upstream) == 0)
        assert stream.read_all() == b"body"


def test_aiohttp__empty_body_with_a_buffer__is_concluded(server: BodyServer) -> None:
    upstream = Upstream("bodies", "1000/s", max_concurrent=1, state=f"memory://{uuid.uuid4().hex}")
    server.bodies = ["empty"]
    with Client("aiohttp-awaiting", upstream, buffer_body=10) as client:
        assert client.send(server.url).text == ""
    assert in_flight(upstream) == 0


class Stuck:
    """Awaiting this never ends."""

    def __await__(self) -> Generator[None, None, None]:
        yield


@pytest.mark.parametrize("buffer_body", [None, 1000])
def test_body__coroutine_is_destroyed_during_a_read__releases_the_permit(buffer_body: int | None) -> None:
    class Endless(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            await Stuck()
            yield b""

    async def read() -> None:
        request = httpx2.Request("GET", "http://127.0.0.1/")
        response = await upstream.transport(inner, buffer_body=buffer_body).handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        await anext(aiter(response.stream))

    upstream = Upstream(
        "bodies", "1000/s", max_concurrent=1, timeout=None, state=f"memory://{uuid.uuid4().hex}"
    )
    inner = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=Endless()))
    coroutine = read()
    coroutine.send(None)
    assert in_flight(upstream) == 1
    coroutine.close()
    del coroutine
    wait_until(lambda: in_flight(upstream) == 0)
    assert failures(upstream) == 0


def test_store__fails_while_the_limit_is_reported_to__the_response_is_returned(
    server: BodyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream = Upstream(
        "bodies",
        "1000/s",
        classify=lambda *_: Outcome("ok", pause=5.0),
        state=f"memory://{uuid.uuid4().hex}",
    )

    def fail(*_: object) -> Flow[None]:
        raise StateUnavailableError("gone")

    monkeypatch.setattr(type(upstream.limiter._flows.overrides), "pause_flow", fail)
    with Client("httpx2", upstream) as client:
        assert client.open(server.url).read_all() == WHOLE


def test_read_timer__stopped_twice__counts_once() -> None:
    """The end of a read and the end of the body both stop it."""
    timer = ReadTimer(30)
    timer.stop()
    left = timer._left
    timer.stop()
    assert timer._left == left
