"""State shared by a fleet through a cluster: ``redis+cluster://``, ``rediss+cluster://``, ``valkey+cluster://``.

A cluster is a store for each of its nodes; here it is decided which of them is asked. Nodes say themselves
when they are the wrong one, and then nothing was carried out: the call goes to the right one, within the
same deadline. What is learnt that way, and what each node tells when it is connected to, is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from comporta import forks
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateError, StateTimeoutError, StateTypeError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import Operation
from comporta.stores.connecting import Connection, Endpoint, Place, address_of
from comporta.stores.effects import Apply, Sleep
from comporta.stores.listing import Keys, ListKeys
from comporta.stores.naming import named, word_of
from comporta.stores.pool import CONNECTING_SECONDS
from comporta.stores.records import Read
from comporta.stores.redis import CONNECT_TIMEOUT_SECONDS, TIMEOUT_SECONDS, RedisStore
from comporta.stores.routes import Close, Goes, Several, greeted
from comporta.stores.slots import Slots, slot_of
from comporta.stores.wire import Call, pack

R = TypeVar("R")

_PORT = 6379
_HOPS_MAX = 5
_AGAIN_SECONDS = 0.002
_SLOTS = pack(("CLUSTER", "SLOTS"))
_PROBE = pack(("EVAL", "return 1", 0))


class ElsewhereError(StateUnavailableError):
    """A node says that it is not the one to be asked; nothing was carried out."""

    def __init__(self, text: str, word: str, place: Place | None) -> None:
        super().__init__(text)
        self.word = word
        self.place = place


class ClusterStore:
    """A store for a fleet, spread over the nodes of a cluster; ``RedisStore`` says what is to be known."""

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    ) -> None:
        several = Several.read(url, _PORT)
        if several.path not in ([], ["0"]):
            raise ValueError(f"a cluster has database 0 only, got {'/'.join(several.path)!r:.50}")
        self.url = several.one("0")
        self.address = address_of(url)
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.clock = clock or MONOTONIC
        self.workers_heard = 0
        self.heard: Callable[[int], None] = _unheard
        self.slots = Slots(several.places)
        self._told_time = clock
        self._known = False
        self._nodes: dict[Place, Node] = {}
        self._making = Lock()
        self.node(several.places[0])  # so that what is missing, or wrong with the bounds, is said now
        self.endpoint = Endpoint(self.url)
        forks.register(self)

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation where its keys live."""
        return run(self._routed(operation))

    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation where its keys live, together with the others that go there."""
        return run_async(self._routed(operation))

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, node by node."""
        return run(self._listed(space))

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return await run_async(self._listed(space))

    def reach(self) -> None:
        """Make sure that every node with slots can be used, blocking; learn anew which those are."""
        run(self._learnt())
        for place in self.slots.places():
            self.node(place).reach()

    def close(self) -> None:
        """Close the connections of blocking callers."""
        for node in list(self._nodes.values()):
            node.close()

    async def aclose(self) -> None:
        """Close all connections, those of the running event loop included."""
        for node in list(self._nodes.values()):
            await node.aclose()

    def after_fork(self) -> None:
        """Be able to go on; the nodes are told themselves."""
        forks.renew(self._making)

    def node(self, place: Place) -> Node:
        """Return the store of one node."""
        node = self._nodes.get(place)
        if node is None:
            with self._making:
                node = self._nodes.get(place) or Node(self, place, self._told_time)
                self._nodes = {**self._nodes, place: node}
        return node

    def _routed(self, operation: Operation[R]) -> Flow[R]:
        """Ask the node that has the keys; where it says that another has them, ask that one."""
        slot = slot_of(operation)
        began_ns, known = MONOTONIC.now_ns(), self._known
        # the first call has to find out who is who, and to connect more than once: see pool.py
        ends_ns = began_ns + int((self.timeout if known else self.timeout + CONNECTING_SECONDS) * 1e9)
        hop, hops = Hop(self.slots.place_of(slot), operation), 0
        while hops <= _HOPS_MAX and MONOTONIC.now_ns() < ends_ns:
            since_ns = began_ns if known else MONOTONIC.now_ns()
            try:
                reply: R = yield At(self.node(hop.place), hop.asked(), since_ns)
            except ElsewhereError as error:
                hop, hops = (yield from self._next(hop, error, slot)), hops + (error.place is not None)
            except (StateUnavailableError, StateTimeoutError):
                self.slots.forget(slot, hop.place)
                raise
            else:
                self._known = True
                return reply
        raise StateUnavailableError(f"{self.address} sent a call from node to node; nothing was carried out")

    def _next(self, hop: Hop, error: ElsewhereError, slot: int) -> Flow[Hop]:
        """Go where the node says; where it has but some of the keys, ask for the state alone, or later."""
        if error.place is not None:
            if error.word == "MOVED":
                self.slots.learn(slot, error.place)
            return hop._replace(place=error.place, asking=error.word == "ASK")
        if hop.stripped:
            yield Sleep(MONOTONIC, _AGAIN_SECONDS)
        owner = self.slots.place_of(slot)  # it knows where the state is: the other would start a second one
        return hop._replace(place=owner, asking=False, stripped=True)

    def _listed(self, space: str) -> Flow[dict[str, bytes]]:
        """Find the keys on every node, and read each on its own: they live in different slots."""
        found: dict[str, bytes] = {}
        for place in self.slots.places():
            cursor = b"0"
            while True:
                page: Keys = yield Apply(self.node(place), ListKeys(space, cursor))
                for key in page.keys:
                    value = yield from self._read(space, key)
                    found |= {} if value is None else {key: value}
                cursor = page.cursor
                if cursor == b"0":
                    break
        return found

    def _read(self, space: str, key: str) -> Flow[bytes | None]:
        try:
            value: bytes | None = yield Apply(self, Read(space, key))
        except StateTypeError:  # no record
            return None
        return value

    def _learnt(self) -> Flow[None]:
        """Ask who has which slot, of anybody who answers."""
        known = self.slots.known()
        failed: StateError = StateUnavailableError(f"{self.address} has no nodes")
        for place in known:
            try:
                yield Close(
                    (yield from self.greeted(self.endpoint, place, self.connect_timeout / len(known)))
                )
            except Exception as error:
                failed = named(error, "{}:{}".format(*place))
            else:
                return
        raise failed

    def greeted(self, endpoint: Any, place: Place, seconds: float) -> Flow[Any]:
        """Connect to a node and note what it tells of the slots."""
        connection, ranges = yield from greeted(endpoint, place, seconds, _SLOTS)
        try:
            self.slots.load(ranges, place)
        except Exception:
            yield Close(connection)
            raise
        self._leave_the_departed()
        return connection

    def _leave_the_departed(self) -> None:
        """Close what is idle of nodes that have no slots any more."""
        here = set(self.slots.known())
        for place, node in list(self._nodes.items()):
            if place not in here:
                node.close()


class Node(RedisStore):
    """One node of a cluster."""

    tagged = True

    def __init__(self, cluster: ClusterStore, place: Place, clock: Clock | None) -> None:
        self.place = place
        super().__init__(
            "redis://{}:{}".format(*place),
            cluster.timeout,
            clock,
            cluster.connect_timeout,
            route=_ToNode(cluster, place),
        )

    def probe(self) -> bytes:
        """Nothing that touches a key: most keys are not here."""
        return _PROBE

    def explained(self, error: Exception, call: Call) -> StateError:
        """Tell a node that is the wrong one from one that is in need."""
        word = word_of(error)
        if word not in ("MOVED", "ASK", "TRYAGAIN"):
            return super().explained(error, call)
        host, port = getattr(error, "node_addr", (None, None))
        place = None if port is None else (host or self.place[0], int(port))
        return ElsewhereError(f"{self.address} says {word}: {error}", word, place)


class _ToNode:
    """The way to a node: it tells of the slots when it is connected to."""

    def __init__(self, cluster: ClusterStore, place: Place) -> None:
        self._cluster = cluster
        self._place = place

    def connect(self, seconds: float) -> Connection:
        """Connect."""
        connection: Connection = run(self._cluster.greeted(self._cluster.endpoint, self._place, seconds))
        return connection

    def awaiting(self) -> Goes:
        """Return what connects."""
        from comporta.stores.connecting_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        endpoint = AsyncEndpoint(self._cluster.url)

        async def connect(seconds: float) -> Any:
            return await run_async(self._cluster.greeted(endpoint, self._place, seconds))

        return connect


def _unheard(_: int) -> None:
    """Workers are not counted on a cluster: their key is another node's."""


class At(NamedTuple):
    """Effect: apply an operation at a node, for a caller that waits since ``began_ns``."""

    node: Node
    operation: Operation[Any]
    began_ns: int

    def block(self) -> Any:
        """Apply it, blocking."""
        return self.node.apply_since(self.operation, self.began_ns)

    async def wait(self) -> Any:
        """Apply it, awaiting."""
        late = (MONOTONIC.now_ns() - self.began_ns) / 1e9
        return await self.node.lines().apply(self.operation, late)


class Hop(NamedTuple):
    """Where an operation goes next, and how."""

    place: Place
    operation: Operation[Any]
    asking: bool = False
    stripped: bool = False

    def asked(self) -> Operation[Any]:
        """Return the operation as it is sent there."""
        if self.asking or self.stripped:
            return _Rewritten(self.operation, asking=self.asking, stripped=self.stripped)
        return self.operation


class _Rewritten:
    """An operation with another script, so that it is not joined with others."""

    def __init__(self, operation: Operation[Any], *, asking: bool, stripped: bool) -> None:
        self._operation = operation
        self.script = operation.script._replace(asking=asking, stripped=stripped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)
