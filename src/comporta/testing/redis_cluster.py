"""A Redis Cluster for tests: slots can be moved step by step while clients use it, and nodes can fail."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from comporta.testing.certificates import Certificate
from comporta.testing.lifecycle import Lifecycle
from comporta.testing.redis_server import HOST, Server, wait_until

SLOTS = 16384
_START_SECONDS = 60.0
_MIGRATE_MS = "5000"
_KEYS_PER_MIGRATE = 100


class Cluster(Lifecycle):
    """Primaries, each with an equal part of the slots, and a replica of each if ``replicas`` is true.

    ::

        with Cluster() as cluster:
            cluster.move_slot(7, to=cluster.nodes[1])

    ``nodes`` are the primaries, ``replicas`` the replicas in the same order. A replica takes over about two
    seconds after its primary has failed.
    """

    def __init__(
        self,
        nodes: int = 3,
        program: str | None = None,
        *options: str,
        password: str | None = None,
        tls: bool = False,
        replicas: bool = False,
    ) -> None:
        certificate = Certificate() if tls else False
        cluster_options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        if tls:
            cluster_options += ["--tls-cluster", "yes"]
        servers = [
            Server(program, *cluster_options, *options, password=password, tls=certificate)
            for _ in range(2 * nodes if replicas else nodes)
        ]
        self.nodes, self.replicas = servers[:nodes], servers[nodes:]

    @property
    def url(self) -> str:
        """The URL of the cluster, with the addresses of all its nodes."""
        scheme, _, rest = self.nodes[0].url.partition("://")
        user = rest[: rest.find("@") + 1]
        addresses = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"{scheme}+cluster://{user}{addresses}/0"

    def start(self) -> Self:
        """Start the nodes, join them, and wait until every node reports that the cluster is healthy."""
        try:
            for node in self._servers:
                node.start()
            self._join()
            wait_until(self._is_healthy, "the cluster is healthy", _START_SECONDS)
            self._replicate()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill the nodes and remove their files."""
        for node in self._servers:
            node.close()

    @property
    def _servers(self) -> list[Server]:
        return [*self.nodes, *self.replicas]

    def node_of(self, slot: int) -> Server:
        """Return the node that owns a slot, according to that node."""
        for node in self._servers:
            if node.process is not None and slot in _slots_of(node):
                return node
        raise RuntimeError(f"no running node owns slot {slot}")

    def move_slot(self, slot: int, to: Server) -> None:
        """Move a slot and its keys to another node, as redis-cli does."""
        self.begin_move(slot, to)
        self.move_keys(slot, to)
        self.end_move(slot, to)

    def begin_move(self, slot: int, to: Server) -> None:
        """Begin to move a slot: from now on the old node redirects requests for absent keys."""
        source = self.node_of(slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _node_id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _node_id(to))

    def move_keys(self, slot: int, to: Server, count: int | None = None) -> int:
        """Move the keys of the slot, or at most ``count`` of them, and return how many were moved."""
        source = self.node_of(slot)
        auth = ["AUTH", to.password] if to.password else []
        moved = 0
        while count is None or moved < count:
            batch = _KEYS_PER_MIGRATE if count is None else min(_KEYS_PER_MIGRATE, count - moved)
            keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, batch)
            if not keys:
                break
            source.command("MIGRATE", HOST, to.port, "", 0, _MIGRATE_MS, *auth, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, to: Server) -> None:
        """Finish the move: assign the slot to the new node, on every node.

        Return when all nodes know the epoch of the new owner. If the slot moved on sooner, the next owner
        could take the same epoch, and a late message of this one would leave the slot without an owner.
        """
        owner = _node_id(to)
        for node in [to, *(node for node in self.nodes if node is not to)]:
            node.command("CLUSTER", "SETSLOT", slot, "NODE", owner)
        epoch = _epoch_of(owner, to)
        running = [node for node in self._servers if node.process is not None]
        wait_until(
            lambda: all(_epoch_of(owner, node) == epoch for node in running),
            f"all nodes know the new owner of slot {slot}",
            _START_SECONDS,
        )

    def _join(self) -> None:
        count = len(self.nodes)
        for number, node in enumerate(self._servers):
            node.command("CLUSTER", "RESET", "HARD")  # a node of another cluster may have known its port
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(self.nodes):
            slots = range(number * SLOTS // count, (number + 1) * SLOTS // count)
            node.command("CLUSTER", "ADDSLOTS", *slots)
        for node in self._servers[1:]:
            self.nodes[0].command("CLUSTER", "MEET", HOST, node.port)

    def _is_healthy(self) -> bool:
        expected = {"cluster_state": "ok", "cluster_known_nodes": str(len(self._servers))}
        return all(expected.items() <= _cluster_info(node).items() for node in self._servers)

    def _replicate(self) -> None:
        for node, replica in zip(self.nodes, self.replicas, strict=False):
            replica.command("CLUSTER", "REPLICATE", _node_id(node))
        for replica in self.replicas:
            what = f"the replica on port {replica.port} is in sync"
            wait_until(partial(_is_in_sync, replica), what, _START_SECONDS)


def _is_in_sync(replica: Server) -> bool:
    return replica.info("replication").get("master_link_status") == "up"


def _node_id(node: Server) -> Any:
    return node.command("CLUSTER", "MYID")


def _cluster_info(node: Server) -> dict[str, str]:
    lines = node.command("CLUSTER", "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _epoch_of(node_id: Any, node: Server) -> Any:
    """Return the configuration epoch of a node as another node knows it."""
    lines = (line.split() for line in node.command("CLUSTER", "NODES").splitlines())
    return next(parts[6] for parts in lines if parts[0] == node_id)


def _slots_of(node: Server) -> set[int]:
    """Return the slots that a node owns, from its line in ``CLUSTER NODES``, which is marked ``myself``."""
    [own_line] = [line for line in node.command("CLUSTER", "NODES").splitlines() if "myself" in line]
    slots: set[int] = set()
    for part in own_line.split()[8:]:
        if not part.startswith("["):  # slots in brackets are being moved
            first, _, last = part.partition("-")
            slots.update(range(int(first), int(last or first) + 1))
    return slots
