"""Every fault of the proxy, seen from a plain connection to a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import closing

import pytest
from tests.support import hold_to
from tests.testing.conftest import Client

from comporta.testing import FaultProxy, Server
from comporta.testing.programs import free_port
from comporta.testing.servers import wait_until


def test_proxy__no_fault__hands_everything_on_and_counts_it(proxy: FaultProxy, server: Server) -> None:
    value = "v" * 200_000
    with closing(Client(proxy.port)) as client:
        assert client.ask("SET", "k", value) == "OK"
        assert client.ask("GET", "k") == value
        assert proxy.open_connections == 1
    assert proxy.connections == 1
    assert proxy.request_bytes > 200_000
    assert proxy.reply_bytes == len("+OK\r\n") + len("$200000\r\n") + 200_000 + 2
    assert server.url.replace(str(server.port), str(proxy.port)) == proxy.url
    wait_until(lambda: proxy.open_connections == 0, "the closed connection is gone", 30)


def test_proxy__client_is_done_sending__the_end_reaches_the_server_and_comes_back(client: Client) -> None:
    client.socket.shutdown(1)
    assert client.socket.recv(1) == b""


def test_proxy__server_not_there__resets_who_connects() -> None:
    with FaultProxy("127.0.0.1", free_port()) as proxy:
        try:
            client = Client(proxy.port)
        except ConnectionResetError:
            return  # it was quicker than we were to see that we are connected
        with closing(client):
            assert client.rest() == b""


def test_delay__both_ways__comes_once_each_way_however_many_are_under_way(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.delay(0.1)
    began = time.monotonic()
    for number in range(50):
        client.send("ECHO", number)
        time.sleep(0.001)  # so that they travel one by one
    assert [client.read() for _ in range(50)] == [str(number) for number in range(50)]
    seconds = time.monotonic() - began
    assert seconds >= 0.2
    hold_to(seconds, 5)  # added up it would be 10


def test_delay__with_jitter__keeps_the_order(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(0, jitter=0.05, direction="replies")
    for number in range(50):
        client.send("ECHO", number)
        time.sleep(0.001)
    assert [client.read() for _ in range(50)] == [str(number) for number in range(50)]


def test_delay__healed__lets_go_of_what_waits(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(3600)
    client.send("PING")
    assert client.is_silent()
    proxy.heal()
    assert client.read() == "PONG"


def test_hang__replies__the_request_is_carried_out_and_its_reply_comes_when_released(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    proxy.hang(direction="replies")
    client.send("INCR", "n")
    wait_until(lambda: server.command("GET", "n") == "1", "the request was carried out", 30)
    assert client.is_silent()
    proxy.release()
    assert client.read() == 1


def test_hang__both_ways_then_dropped__was_never_carried_out_and_the_connection_goes_on(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    proxy.hang()
    client.send("INCR", "n")
    assert client.is_silent()
    proxy.drop()
    assert client.is_silent()
    assert client.ask("PING") == "PONG"
    assert server.command("GET", "n") is None


def test_blackhole__on__swallows_all_and_hides_that_the_server_ended() -> None:
    with Server() as server, FaultProxy.to(server) as proxy, closing(Client(proxy.port)) as client:
        assert client.ask("PING") == "PONG"
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
    assert client.ask("ECHO", "later") == "later"


def test_slice_packets__one_byte_each__arrives_whole(proxy: FaultProxy, client: Client) -> None:
    proxy.slice_packets()
    assert client.ask("ECHO", "x" * 1_000) == "x" * 1_000


def test_limit_bandwidth__large_reply__takes_its_time(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 3_000)
    proxy.limit_bandwidth(10_000, direction="replies")
    began = time.monotonic()
    assert client.ask("GET", "k") == "v" * 3_000
    assert time.monotonic() - began > 0.2


def test_limit_bandwidth__healed_in_between__sends_the_rest_at_once(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 100_000)
    proxy.limit_bandwidth(1)
    client.send("GET", "k")
    assert client.is_silent()
    proxy.heal()
    assert client.read() == "v" * 100_000


def test_refuse__on__nobody_new_connects_and_healing_brings_the_same_port_back(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.refuse()
    proxy.refuse()  # twice does no harm
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.port)
    assert client.ask("PING") == "PONG"
    proxy.heal()
    with closing(Client(proxy.port)) as other:
        assert other.ask("PING") == "PONG"


def test_reset_on_accept__on__resets_only_who_is_new(proxy: FaultProxy, client: Client) -> None:
    proxy.reset_on_accept()
    with pytest.raises(ConnectionResetError), closing(Client(proxy.port)) as other:
        other.socket.recv(1)  # if it is not over already
    assert client.ask("PING") == "PONG"
    assert proxy.connections == 2


@pytest.mark.parametrize("after", [0, 1, 7])
def test_cut_replies__after_so_many_bytes__resets_in_the_middle(
    proxy: FaultProxy, client: Client, server: Server, after: int
) -> None:
    proxy.cut_replies(after=after)
    client.send("INCRBY", "n", 123_456_789)
    assert client.rest() == b":123456789\r\n"[:after]
    assert server.command("GET", "n") == "123456789"


def test_cut_replies__reply_in_many_packets__counts_its_bytes_on(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 500_000)
    proxy.cut_replies(after=300_000)
    client.send("GET", "k")
    assert len(client.rest()) == 300_000


def test_stall_replies__half_of_one__is_followed_by_silence_though_healed(
    proxy: FaultProxy, client: Client
) -> None:
    proxy.stall_replies()
    client.send("PING")
    assert client.socket.recv(100) == b"+PO"
    client.send("PING")
    proxy.heal()
    assert client.is_silent()


def test_cut_requests__half_of_one__is_not_carried_out(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    before = proxy.request_bytes
    proxy.cut_requests()
    client.send("INCR", "n")
    assert client.rest() == b""
    assert proxy.request_bytes - before == len(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n") // 2
    assert server.command("GET", "n") is None


def test_garble_replies__once__then_the_connection_is_as_before(proxy: FaultProxy, client: Client) -> None:
    proxy.garble_replies(garbage=b"\0\xff\n")
    client.send("PING")
    assert client.socket.recv(100) == b"\0\xff\n"
    assert client.ask("ECHO", "clean") == "clean"


def test_garble_replies__reply_in_many_packets__leaves_nothing_of_it(
    proxy: FaultProxy, client: Client, server: Server
) -> None:
    server.command("SET", "k", "v" * 100_000)
    proxy.garble_replies(garbage=b"?")
    client.send("GET", "k")
    assert client.socket.recv(100) == b"?"
    assert client.is_silent()


def test_lose_replies__three__are_exactly_three_that_were_all_carried_out(
    proxy: FaultProxy, server: Server
) -> None:
    proxy.lose_replies(3, to="INCR")
    assert proxy.faults_to_come == 3
    lost = 0
    for _ in range(10):
        with closing(Client(proxy.port)) as client:
            assert client.ask("PING") == "PONG"  # as clients do when they connect; it does not count
            client.send("INCR", "n")
            try:
                client.read()
            except ConnectionError:
                lost += 1
    assert (lost, proxy.replies_lost, proxy.faults_to_come) == (3, 3, 0)
    assert server.command("GET", "n") == "10"


def test_lose_replies__many_clients_at_once__are_counted_exactly(proxy: FaultProxy, server: Server) -> None:
    lost: list[int] = []

    def ask(number: int) -> None:
        with closing(Client(proxy.port)) as client:
            try:
                client.ask("INCR", "n")
            except ConnectionError:
                lost.append(number)

    proxy.lose_replies(7)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == proxy.replies_lost == 7
    assert server.command("GET", "n") == "30"


def test_planned__several_kinds__happen_in_the_order_they_were_planned(proxy: FaultProxy) -> None:
    proxy.cut_replies(after=1)
    proxy.garble_replies(garbage=b"?")
    seen = []
    for _ in range(3):
        with closing(Client(proxy.port)) as client:
            client.send("PING")
            seen.append(client.socket.recv(1))
    assert seen == [b"+", b"?", b"+"]
    assert proxy.faults_to_come == 0


def test_cut__connections_open__are_reset_and_new_ones_work(proxy: FaultProxy, client: Client) -> None:
    proxy.cut()
    assert client.rest() == b""
    assert proxy.open_connections == 0
    with closing(Client(proxy.port)) as other:
        assert other.ask("PING") == "PONG"


def test_heal__faults_of_every_kind__are_all_off(proxy: FaultProxy, client: Client) -> None:
    proxy.delay(3600, jitter=1)
    proxy.hang()
    proxy.blackhole("replies")
    proxy.slice_packets()
    proxy.limit_bandwidth(1)
    proxy.refuse()
    proxy.reset_on_accept()
    proxy.lose_replies(5)
    proxy.cut_requests(5)
    proxy.heal()
    assert proxy.faults_to_come == 0
    for asking in (client, Client(proxy.port)):
        with closing(asking):
            assert asking.ask("PING") == "PONG"


def test_proxy__asked_from_an_event_loop__serves_it_as_well(proxy: FaultProxy) -> None:
    async def story() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        proxy.slice_packets(2)
        writer.write(b"PING\r\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line

    assert asyncio.run(story()) == b"+PONG\r\n"


def test_proxy__closed_with_connections_held__ends_them_and_its_thread(valkey: Server) -> None:
    proxy = FaultProxy.to(valkey).start()
    with closing(Client(proxy.port)) as client:
        proxy.hang()
        client.send("PING")
        proxy.close()
        assert client.rest() == b""
    proxy.close()  # twice does no harm
    with pytest.raises(RuntimeError, match="does not run"):
        proxy.heal()


def test_proxy__port_taken__says_so_and_leaves_no_thread(valkey: Server) -> None:
    proxy = FaultProxy.to(valkey)
    proxy.port = valkey.port
    with pytest.raises(OSError, match="in use"):
        proxy.start()
    assert not proxy._thread.is_alive()


def test_proxy__nonsense__is_refused_by_name(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="seconds must be 0 or more, got -1"):
        proxy.delay(-1)
    with pytest.raises(ValueError, match="count must be 1 or more, got 0"):
        proxy.lose_replies(0)
    with pytest.raises(ValueError, match="after must be 0 or more, got -3"):
        proxy.cut_replies(after=-3)
    with pytest.raises(ValueError, match="direction must be 'both', 'requests' or 'replies', got 'up'"):
        proxy.hang("up")  # type: ignore[arg-type]
