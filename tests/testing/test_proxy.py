"""Every fault of the proxy, seen from a plain connection to a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest
from tests.support import assert_within
from tests.testing.conftest import Client

from comporta.testing import FaultProxy, Server
from comporta.testing.faults import Direction, LinkConditions
from comporta.testing.programs import free_port
from comporta.testing.redis_server import wait_until


def test_proxy__no_fault__forwards_and_counts_all_bytes(proxy: FaultProxy, server: Server) -> None:
    value = "v" * 200_000
    with closing(Client(proxy.port)) as client:
        assert client.request("SET", "k", value) == "OK"
        assert client.request("GET", "k") == value
        assert proxy.open_connections == 1
    assert proxy.connections == 1
    assert proxy.request_bytes > 200_000
    assert proxy.reply_bytes == len("+OK\r\n") + len("$200000\r\n") + 200_000 + 2
    assert server.url.replace(str(server.port), str(proxy.port)) == proxy.url
    wait_until(lambda: proxy.open_connections == 0, "the closed connection is gone", 30)


def test_proxy__client_closes_its_side__both_sides_see_the_end(client: Client) -> None:
    client.socket.shutdown(1)
    assert client.socket.recv(1) == b""


def test_proxy__server_not_running__resets_connections() -> None:
    with FaultProxy("127.0.0.1", free_port()) as proxy:
        try:
            client = Client(proxy.port)
        except ConnectionResetError:
            return  # the reset arrived before connect() returned
        with closing(client):
            assert client.rest() == b""


def has_more(items: list[float], count: int) -> bool:
    return len(items) > count


def noted_chunks(proxy: FaultProxy, direction: Direction, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list that grows with each chunk that the proxy reads in a direction, with its delay."""
    chunks: list[float] = []
    draw_delay_s = LinkConditions.draw_delay_s

    def note(conditions: LinkConditions) -> float:
        delay = draw_delay_s(conditions)
        if conditions is proxy._faults.conditions[direction]:
            chunks.append(delay)
        return delay

    monkeypatch.setattr(LinkConditions, "draw_delay_s", note)
    return chunks


def test_delay__both_directions__applies_once_each_to_concurrent_requests(
    proxy: FaultProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.delay(0.1)
    chunks = noted_chunks(proxy, "requests", monkeypatch)
    began = time.monotonic()
    for number in range(50):
        client.send("ECHO", number)
        wait_until(partial(has_more, chunks, number), "the proxy has read the request", 30)
    assert [client.read() for _ in range(50)] == [str(number) for number in range(50)]
    seconds = time.monotonic() - began
    assert seconds >= 0.2
    assert_within(seconds, 5)  # the sum of all delays is 10


def test_delay__with_jitter__keeps_the_order(
    proxy: FaultProxy, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.delay(0, jitter=0.05, direction="replies")
    chunks = noted_chunks(proxy, "replies", monkeypatch)
    for number in range(50):
        client.send("ECHO", number)
        wait_until(partial(has_more, chunks, number), "the proxy has read the reply", 30)
    assert [client.read() for _ in range(50)] == [str(number) for number in range(50)]


def test_delay__healed__forwards_the_delayed_bytes(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(3600)
    client.send("PING")
    assert client.is_silent()
    proxy.heal()
    assert client.read() == "PONG"


def test_hang__replies__request_is_executed_and_its_reply_arrives_on_release(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    proxy.hang(direction="replies")
    client.send("INCR", "n")
    wait_until(lambda: server.command("GET", "n") == "1", "the server executed the request", 30)
    assert client.is_silent()
    proxy.release()
    assert client.read() == 1


def test_hang__both_directions_then_dropped__never_executes_the_request(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    proxy.hang()
    client.send("INCR", "n")
    assert client.is_silent()
    proxy.drop()
    assert client.is_silent()
    assert client.request("PING") == "PONG"
    assert server.command("GET", "n") is None


def test_blackhole__on__discards_bytes_and_hides_the_servers_end() -> None:
    with Server() as server, FaultProxy.to(server) as proxy, closing(Client(proxy.port)) as client:
        assert client.request("PING") == "PONG"
        proxy.blackhole()
        client.send("INCR", "n")
        assert client.is_silent()
        assert server.command("GET", "n") is None
        server.kill()
        assert client.is_silent()
        proxy.heal()
        assert client.socket.recv(1) == b""


def test_blackhole__healed__later_requests_are_answered(proxy: FaultProxy, client: Client) -> None:
    proxy.blackhole(direction="requests")
    client.send("PING")
    assert client.is_silent()
    proxy.heal()
    assert client.request("ECHO", "later") == "later"


def test_slice_packets__one_byte__arrives_complete(proxy: FaultProxy, client: Client) -> None:
    proxy.slice_packets()
    assert client.request("ECHO", "x" * 1_000) == "x" * 1_000


def test_limit_bandwidth__large_reply__is_slowed_down(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 3_000)
    proxy.limit_bandwidth(10_000, direction="replies")
    began = time.monotonic()
    assert client.request("GET", "k") == "v" * 3_000
    assert time.monotonic() - began > 0.2


def test_limit_bandwidth__healed_midway__sends_the_rest_immediately(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 100_000)
    proxy.limit_bandwidth(1)
    client.send("GET", "k")
    assert client.is_silent()
    proxy.heal()
    assert client.read() == "v" * 100_000


def test_refuse_connections__on_then_healed__listens_on_the_same_port_again(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.refuse_connections()
    proxy.refuse_connections()  # a second call does nothing
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.port)
    assert client.request("PING") == "PONG"
    proxy.heal()
    with closing(Client(proxy.port)) as other:
        assert other.request("PING") == "PONG"


def test_reset_on_accept__on__resets_new_connections_only(proxy: FaultProxy, client: Client) -> None:
    proxy.reset_on_accept()
    with pytest.raises(ConnectionResetError), closing(Client(proxy.port)) as other:
        other.socket.recv(1)  # unless connect() already failed
    assert client.request("PING") == "PONG"
    assert proxy.connections == 2


@pytest.mark.parametrize("after", [0, 1, 7])
def test_truncate_replies__after_n_bytes__resets_in_the_middle(
    proxy: FaultProxy, client: Client, server: Server, after: int
) -> None:
    proxy.truncate_replies(after=after)
    client.send("INCRBY", "n", 123_456_789)
    assert client.rest() == b":123456789\r\n"[:after]
    assert server.command("GET", "n") == "123456789"


def test_truncate_replies__reply_in_many_packets__counts_across_packets(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 500_000)
    proxy.truncate_replies(after=300_000)
    client.send("GET", "k")
    assert len(client.rest()) == 300_000


def test_stall_replies__half_of_one__stays_silent_after_heal(proxy: FaultProxy, client: Client) -> None:
    proxy.stall_replies()
    client.send("PING")
    assert client.socket.recv(100) == b"+PO"
    client.send("PING")
    proxy.heal()
    assert client.is_silent()


def test_truncate_requests__half_of_one__is_not_executed(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    before = proxy.request_bytes
    proxy.truncate_requests()
    client.send("INCR", "n")
    assert client.rest() == b""
    assert proxy.request_bytes - before == len(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n") // 2
    assert server.command("GET", "n") is None


def test_garble_replies__once__connection_works_afterwards(proxy: FaultProxy, client: Client) -> None:
    proxy.garble_replies(garbage=b"\0\xff\n")
    client.send("PING")
    assert client.socket.recv(100) == b"\0\xff\n"
    assert client.request("ECHO", "clean") == "clean"


def test_garble_replies__reply_in_many_packets__replaces_all_of_it(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 100_000)
    proxy.garble_replies(garbage=b"?")
    client.send("GET", "k")
    assert client.socket.recv(100) == b"?"
    assert client.is_silent()


def test_lose_replies__three__loses_three_of_executed_requests(proxy: FaultProxy, server: Server) -> None:
    proxy.lose_replies(3, matching="INCR")
    assert proxy.pending_faults == 3
    lost = 0
    for _ in range(10):
        with closing(Client(proxy.port)) as client:
            assert client.request("PING") == "PONG"  # as clients do when they connect; it does not match
            client.send("INCR", "n")
            try:
                client.read()
            except ConnectionError:
                lost += 1
    assert (lost, proxy.replies_lost, proxy.pending_faults) == (3, 3, 0)
    assert server.command("GET", "n") == "10"


def test_lose_replies__many_concurrent_clients__counts_exactly(proxy: FaultProxy, server: Server) -> None:
    lost: list[int] = []

    def increment(number: int) -> None:
        with closing(Client(proxy.port)) as client:
            try:
                client.request("INCR", "n")
            except ConnectionError:
                lost.append(number)

    proxy.lose_replies(7)
    threads = [threading.Thread(target=increment, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == proxy.replies_lost == 7
    assert server.command("GET", "n") == "30"


def test_planned_faults__several_kinds__happen_in_order(proxy: FaultProxy) -> None:
    proxy.truncate_replies(after=1)
    proxy.garble_replies(garbage=b"?")
    seen = []
    for _ in range(3):
        with closing(Client(proxy.port)) as client:
            client.send("PING")
            seen.append(client.socket.recv(1))
    assert seen == [b"+", b"?", b"+"]
    assert proxy.pending_faults == 0


def test_reset_connections__open_connections__are_reset_and_new_ones_work(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.reset_connections()
    assert client.rest() == b""
    assert proxy.open_connections == 0
    with closing(Client(proxy.port)) as other:
        assert other.request("PING") == "PONG"


def test_reset_connections__connection_just_accepted__is_reset(proxy: FaultProxy) -> None:
    is_busy, may_go_on = threading.Event(), threading.Event()

    def occupy_the_loop() -> None:
        is_busy.set()
        may_go_on.wait(60)

    proxy._loop.call_soon_threadsafe(occupy_the_loop)
    assert is_busy.wait(60)
    with closing(Client(proxy.port)) as client, ThreadPoolExecutor(1) as threads:
        reset = threads.submit(proxy.reset_connections)
        wait_until(lambda: len(proxy._loop._ready) > 0, "the reset is next", 60)  # type: ignore[attr-defined]
        may_go_on.set()
        reset.result(60)
        assert proxy.connections == 1
        with pytest.raises(ConnectionResetError):
            client.socket.recv(1)


def test_heal__faults_of_every_kind__are_switched_off(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(3600, jitter=1)
    proxy.hang()
    proxy.blackhole("replies")
    proxy.slice_packets()
    proxy.limit_bandwidth(1)
    proxy.refuse_connections()
    proxy.reset_on_accept()
    proxy.lose_replies(5)
    proxy.truncate_requests(5)
    proxy.heal()
    assert proxy.pending_faults == 0
    for each in (client, Client(proxy.port)):
        with closing(each):
            assert each.request("PING") == "PONG"


def test_proxy__used_from_an_event_loop__forwards_bytes(proxy: FaultProxy) -> None:
    async def ping() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.slice_packets(2)
        writer.write(b"PING\r\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    assert asyncio.run(ping()) == b"+PONG\r\n"


def test_proxy__closed_with_open_connections__ends_them_and_its_thread(valkey: Server) -> None:
    proxy = FaultProxy.to(valkey).start()
    with closing(Client(proxy.port)) as client:
        proxy.hang()
        client.send("PING")
        proxy.close()
        assert client.rest() == b""
    proxy.close()  # a second call does nothing
    with pytest.raises(RuntimeError, match="is not running"):
        proxy.heal()


def test_proxy__port_in_use__raises_and_leaves_no_thread(valkey: Server) -> None:
    proxy = FaultProxy.to(valkey)
    proxy.port = valkey.port
    with pytest.raises(OSError, match="in use"):
        proxy.start()
    assert not proxy._thread.is_alive()


def test_proxy__invalid_argument__is_named(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="seconds must be 0 or more, got -1"):
        proxy.delay(-1)
    with pytest.raises(ValueError, match="count must be 1 or more, got 0"):
        proxy.lose_replies(0)
    with pytest.raises(ValueError, match="after must be 0 or more, got -3"):
        proxy.truncate_replies(after=-3)
    with pytest.raises(ValueError, match="direction must be 'both', 'requests' or 'replies', got 'up'"):
        proxy.hang("up")  # type: ignore[arg-type]
