"""A cluster for tests, whose slots can be moved while it is asked, step by step."""

from __future__ import annotations

from typing import Any, Self

from comporta.testing.certificates import Certificate
from comporta.testing.servers import HOST, Server, wait_until
from comporta.testing.started import Started

SLOTS = 16384
_START_SECONDS = 60.0
_MIGRATE_MS = "5000"
_KEYS_AT_ONCE = 100


class Cluster(Started):
    """Primaries without replicas, each with an even part of the slots.

    ::

        with Cluster() as cluster:
            cluster.move_slot(7, to=cluster.nodes[1])
    """

    def __init__(
        self,
        nodes: int = 3,
        program: str | None = None,
        *options: str,
        password: str | None = None,
        tls: bool = False,
    ) -> None:
        certificate = Certificate() if tls else False
        own = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
        if tls:
            own += ["--tls-cluster", "yes"]
        self.nodes = [
            Server(program, *own, *options, password=password, tls=certificate) for _ in range(nodes)
        ]

    @property
    def url(self) -> str:
        """Where to find all its nodes."""
        scheme, _, rest = self.nodes[0].url.partition("://")
        user = rest[: rest.find("@") + 1]
        addresses = ",".join(f"{HOST}:{node.port}" for node in self.nodes)
        return f"{scheme}+cluster://{user}{addresses}/0"

    def start(self) -> Self:
        """Start the nodes, join them, and wait until each of them says that all is well."""
        try:
            for node in self.nodes:
                node.start()
            self._join()
            wait_until(self._well, "the cluster is well", _START_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill the nodes and remove what they wrote."""
        for node in self.nodes:
            node.close()

    def node_of(self, slot: int) -> Server:
        """Return the node that has a slot, by its own account."""
        for node in self.nodes:
            if node.process is not None and slot in _slots_of(node):
                return node
        raise RuntimeError(f"no node that runs has slot {slot}")

    def move_slot(self, slot: int, to: Server) -> None:
        """Move a slot with its keys to another node, as redis-cli does."""
        self.begin_move(slot, to)
        self.move_keys(slot, to)
        self.end_move(slot, to)

    def begin_move(self, slot: int, to: Server) -> None:
        """First step: from here on keys that are not there (any more) are asked for at the new node."""
        source = self.node_of(slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))

    def move_keys(self, slot: int, to: Server, count: int | None = None) -> int:
        """Second step: move the keys of the slot, or so many of them, and return how many went."""
        source = self.node_of(slot)
        auth = ["AUTH", to.password] if to.password else []
        moved = 0
        while count is None or moved < count:
            wanted = _KEYS_AT_ONCE if count is None else min(_KEYS_AT_ONCE, count - moved)
            keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, wanted)
            if not keys:
                break
            source.command("MIGRATE", HOST, to.port, "", 0, _MIGRATE_MS, *auth, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, to: Server) -> None:
        """Last step: the slot is the new node's, and every node knows."""
        for node in [to, *(node for node in self.nodes if node is not to)]:
            node.command("CLUSTER", "SETSLOT", slot, "NODE", _id(to))

    def _join(self) -> None:
        count = len(self.nodes)
        for number, node in enumerate(self.nodes):
            slots = range(number * SLOTS // count, (number + 1) * SLOTS // count)
            node.command("CLUSTER", "ADDSLOTS", *slots)
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in self.nodes[1:]:
            self.nodes[0].command("CLUSTER", "MEET", HOST, node.port)

    def _well(self) -> bool:
        expected = {"cluster_state": "ok", "cluster_known_nodes": str(len(self.nodes))}
        return all(expected.items() <= _cluster_info(node).items() for node in self.nodes)


def _id(node: Server) -> Any:
    return node.command("CLUSTER", "MYID")


def _cluster_info(node: Server) -> dict[str, str]:
    lines = node.command("CLUSTER", "INFO").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _slots_of(node: Server) -> set[int]:
    """Return the slots a node takes for its own. In a list of all nodes it marks itself ``myself``."""
    [mine] = [line for line in node.command("CLUSTER", "NODES").splitlines() if "myself" in line]
    slots: set[int] = set()
    for part in mine.split()[8:]:
        if not part.startswith("["):  # in brackets: slots on the move
            first, _, last = part.partition("-")
            slots.update(range(int(first), int(last or first) + 1))
    return slots
