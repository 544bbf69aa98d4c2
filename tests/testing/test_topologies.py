"""Sentinels and clusters: real ones, that do what those of a fleet do, and leave nothing behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from tests.testing.conftest import Client

from comporta.testing import Cluster, Sentinels, Server, find_servers
from comporta.testing.clusters import SLOTS
from comporta.testing.servers import wait_until

SERVERS = find_servers()
TLS_SERVERS = find_servers(tls=True)
SLOT_OF_FOO = 12_182


@pytest.fixture(scope="module", params=sorted(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture(scope="module")
def cluster(kind: str) -> Iterator[Cluster]:
    with Cluster(program=kind) as started:
        yield started


def test_sentinels__primary_killed__appoint_the_replica(kind: str) -> None:
    with (
        Server(kind, password="secret") as primary,  # noqa: S106 - it guards nothing
        primary.replica() as replica,
        Sentinels(primary) as sentinels,
    ):
        ports = [node.port for node in sentinels.nodes]
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        assert sentinels.url == f"redis+sentinel://:secret@{hosts}/main/0"
        assert sentinels.primary_address() == ("127.0.0.1", primary.port)
        primary.kill()
        sentinels.nodes[0].kill()  # two of three still agree
        assert sentinels.wait_for_primary(other_than=primary.port) == ("127.0.0.1", replica.port)
        assert replica.command("SET", "k", "v") == "OK"
    assert not any(_listens(port) for port in [*ports, primary.port, replica.port])


def test_sentinels__nobody_answers__is_said() -> None:
    with pytest.raises(RuntimeError, match="none of the sentinels of 'main' answers"):
        Sentinels(Server()).primary_address()


def test_sentinels__no_failover__waiting_ends(valkey: Server) -> None:
    with (
        Sentinels(valkey, count=1, quorum=1) as sentinels,
        pytest.raises(TimeoutError, match="a primary of 'main' other than port"),
    ):
        sentinels.wait_for_primary(other_than=valkey.port, seconds=0.05)


def test_sentinels__primary_not_there__start_fails_and_leaves_none_running() -> None:
    sentinels = Sentinels(Server(), count=2)
    with pytest.raises(ConnectionRefusedError):
        sentinels.start()
    assert [node.process for node in sentinels.nodes] == [None, None]


def test_cluster__started__has_all_slots_evenly_and_every_node_agrees(cluster: Cluster) -> None:
    owners = [cluster.node_of(slot) for slot in (0, SLOTS // 2, SLOTS - 1)]
    assert owners == cluster.nodes
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    assert cluster.url == f"redis+cluster://{hosts}/0"
    client = redis.RedisCluster("127.0.0.1", cluster.nodes[0].port)
    with closing(client):
        assert client.set("foo", "bar") is True
        assert cluster.node_of(SLOT_OF_FOO).command("GET", "foo") == "bar"


def test_cluster__slot_moved__its_keys_are_there_and_the_others_say_where(cluster: Cluster) -> None:
    source = cluster.node_of(SLOT_OF_FOO)
    target = next(node for node in cluster.nodes if node is not source)
    for number in range(250):
        source.command("SET", f"{{foo}}{number}", number)
    cluster.move_slot(SLOT_OF_FOO, to=target)
    assert cluster.node_of(SLOT_OF_FOO) is target
    assert [target.command("GET", f"{{foo}}{number}") for number in (0, 249)] == ["0", "249"]
    for node in cluster.nodes:
        if node is not target:
            with pytest.raises(RuntimeError, match=f"^MOVED {SLOT_OF_FOO} 127.0.0.1:{target.port}"):
                node.command("GET", "foo")


def test_cluster__move_stopped_half_way__asks_for_the_keys_that_went(cluster: Cluster) -> None:
    source = cluster.node_of(SLOT_OF_FOO)
    target = next(node for node in cluster.nodes if node is not source)
    source.command("FLUSHALL")
    source.command("MSET", "{foo}a", 1, "{foo}b", 2)
    cluster.begin_move(SLOT_OF_FOO, target)
    assert cluster.move_keys(SLOT_OF_FOO, target, count=1) == 1
    gone = [key for key in ("{foo}a", "{foo}b") if _error(source, "GET", key).startswith("ASK")]
    assert len(gone) == 1
    with pytest.raises(RuntimeError, match=r"^MOVED"):
        target.command("GET", gone[0])
    with closing(Client(target.port)) as client:
        assert client.ask("ASKING") == "OK"
        assert client.ask("GET", gone[0]) in ("1", "2")
    assert cluster.node_of(SLOT_OF_FOO) is source
    assert cluster.move_keys(SLOT_OF_FOO, target) == 1
    cluster.end_move(SLOT_OF_FOO, target)
    assert target.command("EXISTS", "{foo}a", "{foo}b") == 2


def test_cluster__node_killed__is_missed_and_comes_back_empty_with_its_slots(cluster: Cluster) -> None:
    gone, witness = cluster.nodes[2], cluster.nodes[0]
    slot = SLOTS - 1
    gone.kill()
    wait_until(lambda: _error(witness, "GET", "foo").startswith("CLUSTERDOWN"), "the cluster is down", 60)
    with pytest.raises(RuntimeError, match=f"no node that runs has slot {slot}"):
        cluster.node_of(slot)
    gone.start()
    wait_until(cluster._well, "the cluster is well again", 60)
    assert cluster.node_of(slot) is gone


def test_cluster__node_that_cannot_start__ends_the_others() -> None:
    cluster = Cluster(2)
    cluster.nodes[1].options += ("--nonsense", "1")
    with pytest.raises(RuntimeError, match="did not start"):
        cluster.start()
    assert [node.process for node in cluster.nodes] == [None, None]


@pytest.mark.skipif(not TLS_SERVERS, reason="no server here was built to speak TLS")
def test_cluster__with_tls_and_a_password__moves_slots_as_well() -> None:
    with Cluster(2, tls=True, password="secret") as cluster:  # noqa: S106 - it guards nothing
        assert cluster.url.startswith("rediss+cluster://:secret@127.0.0.1:")
        cluster.nodes[0].command("SET", "bar", "v")
        slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", "bar")
        cluster.move_slot(slot, to=cluster.nodes[1])
        assert cluster.nodes[1].command("GET", "bar") == "v"


@pytest.mark.skipif(not TLS_SERVERS, reason="no server here was built to speak TLS")
def test_sentinels__of_a_primary_with_tls__speak_it_too() -> None:
    with Server(tls=True) as primary, Sentinels(primary, count=1, quorum=1) as sentinels:
        assert sentinels.url == f"rediss+sentinel://127.0.0.1:{sentinels.nodes[0].port}/main/0"
        assert sentinels.nodes[0].ca_file == primary.ca_file
        assert sentinels.primary_address() == ("127.0.0.1", primary.port)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _error(server: Server, *words: str) -> str:
    try:
        server.command(*words)
    except RuntimeError as error:
        return str(error)
    return ""
