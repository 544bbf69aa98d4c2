"""Real sentinels and clusters for tests: failovers, slot moves, and that they leave nothing behind."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from tests.testing.conftest import Client

from comporta.testing import Cluster, Sentinels, Server, find_servers
from comporta.testing.redis_cluster import SLOTS
from comporta.testing.redis_server import wait_until

SERVERS = find_servers()
SLOT_OF_FOO = 12_182


@pytest.fixture(scope="module", params=sorted(SERVERS))
def kind(request: pytest.FixtureRequest) -> str:
    return SERVERS[request.param]


@pytest.fixture(scope="module")
def cluster(kind: str) -> Iterator[Cluster]:
    with Cluster(program=kind) as started:
        yield started


def test_sentinels__primary_killed__promote_the_replica(kind: str) -> None:
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
        sentinels.nodes[0].kill()  # two of three sentinels are still a quorum
        assert sentinels.wait_for_primary(other_than=primary.port) == ("127.0.0.1", replica.port)
        assert replica.command("SET", "k", "v") == "OK"
    assert not any(_listens(port) for port in [*ports, primary.port, replica.port])


def test_sentinels__none_replies__raises() -> None:
    with pytest.raises(RuntimeError, match="no sentinel of 'main' replies"):
        Sentinels(Server()).primary_address()


def test_sentinels__no_failover__wait_times_out(valkey: Server) -> None:
    with (
        Sentinels(valkey, count=1, quorum=1) as sentinels,
        pytest.raises(TimeoutError, match="'main' has a primary on a port other than"),
    ):
        sentinels.wait_for_primary(other_than=valkey.port, seconds=0.05)


def test_sentinels__primary_not_running__start_fails_and_leaves_no_process() -> None:
    sentinels = Sentinels(Server(), count=2)
    with pytest.raises(ConnectionRefusedError):
        sentinels.start()
    assert [node.process for node in sentinels.nodes] == [None, None]


def test_cluster__started__divides_all_slots_evenly(cluster: Cluster) -> None:
    owners = [cluster.node_of(slot) for slot in (0, SLOTS // 2, SLOTS - 1)]
    assert owners == cluster.nodes
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    assert cluster.url == f"redis+cluster://{hosts}/0"
    client = redis.RedisCluster("127.0.0.1", cluster.nodes[0].port)
    with closing(client):
        assert client.set("foo", "bar") is True
        assert cluster.node_of(SLOT_OF_FOO).command("GET", "foo") == "bar"


def test_cluster__slot_moved__moves_its_keys_and_redirects(cluster: Cluster) -> None:
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


def test_cluster__move_stopped_midway__redirects_for_moved_keys(cluster: Cluster) -> None:
    source = cluster.node_of(SLOT_OF_FOO)
    target = next(node for node in cluster.nodes if node is not source)
    source.command("FLUSHALL")
    source.command("MSET", "{foo}a", 1, "{foo}b", 2)
    cluster.begin_move(SLOT_OF_FOO, target)
    assert cluster.move_keys(SLOT_OF_FOO, target, count=1) == 1
    moved = [key for key in ("{foo}a", "{foo}b") if _error(source, "GET", key).startswith("ASK")]
    assert len(moved) == 1
    with pytest.raises(RuntimeError, match=r"^MOVED"):
        target.command("GET", moved[0])
    with closing(Client(target.port)) as client:
        assert client.request("ASKING") == "OK"
        assert client.request("GET", moved[0]) in ("1", "2")
    assert cluster.node_of(SLOT_OF_FOO) is source
    assert cluster.move_keys(SLOT_OF_FOO, target) == 1
    cluster.end_move(SLOT_OF_FOO, target)
    assert target.command("EXISTS", "{foo}a", "{foo}b") == 2


def test_cluster__node_killed_and_restarted__is_empty_and_keeps_its_slots(cluster: Cluster) -> None:
    killed, witness = cluster.nodes[2], cluster.nodes[0]
    slot = SLOTS - 1
    killed.kill()
    wait_until(lambda: _error(witness, "GET", "foo").startswith("CLUSTERDOWN"), "the cluster is down", 60)
    with pytest.raises(RuntimeError, match=f"no running node owns slot {slot}"):
        cluster.node_of(slot)
    killed.start()
    wait_until(cluster._is_healthy, "the cluster is healthy again", 60)
    assert cluster.node_of(slot) is killed


def test_cluster__node_that_cannot_start__stops_the_others() -> None:
    cluster = Cluster(2)
    cluster.nodes[1].options += ("--nonsense", "1")
    with pytest.raises(RuntimeError, match="did not start"):
        cluster.start()
    assert [node.process for node in cluster.nodes] == [None, None]


@pytest.mark.usefixtures("tls_program")
def test_cluster__with_tls_and_a_password__moves_slots() -> None:
    with Cluster(2, tls=True, password="secret") as cluster:  # noqa: S106 - it guards nothing
        assert cluster.url.startswith("rediss+cluster://:secret@127.0.0.1:")
        cluster.nodes[0].command("SET", "bar", "v")
        slot = cluster.nodes[0].command("CLUSTER", "KEYSLOT", "bar")
        cluster.move_slot(slot, to=cluster.nodes[1])
        assert cluster.nodes[1].command("GET", "bar") == "v"


@pytest.mark.usefixtures("tls_program")
def test_sentinels__primary_with_tls__use_tls() -> None:
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
