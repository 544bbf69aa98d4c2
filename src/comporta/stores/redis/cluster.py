"""State shared by a fleet through a cluster: ``redis+cluster://``, ``rediss+cluster://``, ``valkey+cluster://``.

A cluster is one store per node; this module routes each operation to the node that owns its keys. A node that
does not own the keys redirects the call without any effect, and the call is sent to the right node within the
same deadline. Redirects update the slot map, as does each connection to a node.

``cluster_slots.py`` computes slots, ``override_copies.py`` makes decisions on spread keys follow overrides,
and ``cluster_reads.py`` joins what a heartbeat reads into one call for each node.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from comporta import fork_safety
from comporta.clock import MONOTONIC, Clock
from comporta.errors import (
    StateError,
    StateMovingError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.flow import Flow, run, run_async
from comporta.stores.base import Operation, Store, key_text
from comporta.stores.effects import Apply, Sleep
from comporta.stores.records import ReadRecord
from comporta.stores.redis.cluster_hop import ClusterRedirectError, CountKeys, Hop, JoinedReadsRefusedError
from comporta.stores.redis.cluster_reads import JoinedReads, join_reads
from comporta.stores.redis.cluster_slots import (
    OVERRIDE_SPACE,
    SlotMap,
    operation_slot,
    spread_tag,
    state_names,
)
from comporta.stores.redis.connection import Endpoint, HostPort, RedisConnection, display_address
from comporta.stores.redis.errors import error_code, translate_error
from comporta.stores.redis.override_copies import OverrideCopies
from comporta.stores.redis.pool import CONNECT_ALLOWANCE_SECONDS
from comporta.stores.redis.protocol import ScriptCall, pack
from comporta.stores.redis.scan import KeyPage, ScanKeys
from comporta.stores.redis.sentinel import AsyncConnect, CloseConnection, MultiHostURL, connect_and_ask_flow
from comporta.stores.redis.store import CONNECT_TIMEOUT_SECONDS, TIMEOUT_SECONDS, RedisStore

R = TypeVar("R")

_DEFAULT_PORT = 6379
_HOPS_MAX = 5
_RETRY_SECONDS = 0.002
_RETRY_SHARE = 0.75
"""The part of a deadline in which to retry while a slot moves; the rest is for the last reply."""
_CLUSTER_SLOTS_COMMAND = pack(("CLUSTER", "SLOTS"))
_PROBE_COMMAND = pack(("EVAL", "return 1", 0))


class ClusterStore(Store):
    """A store for a fleet, on the nodes of a cluster. The parameters are those of ``RedisStore``."""

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        timeout_max: float | None = None,
    ) -> None:
        hosts_url = MultiHostURL.parse(url, _DEFAULT_PORT)
        if hosts_url.path not in ([], ["0"]):
            raise ValueError(f"a cluster has database 0 only, got {'/'.join(hosts_url.path)!r:.50}")
        self.url = hosts_url.single_host_url("0")
        self.address = display_address(url)
        self.timeout = timeout
        self.timeout_max = timeout_max
        self.connect_timeout = connect_timeout
        self.connect_seconds_max = 2 * connect_timeout  # the slot map first, then the nodes
        self.clock = clock or MONOTONIC
        self.slot_map = SlotMap(hosts_url.hosts)
        self._test_clock = clock
        self._has_routed = False
        self._override_copies = OverrideCopies()
        self._nodes: dict[HostPort, ClusterNode] = {}
        self._creation_lock = Lock()
        self.node(hosts_url.hosts[0])  # so that a missing package or an invalid timeout raises now
        self.endpoint = Endpoint(self.url)
        fork_safety.register(self)

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation on the node that owns its keys."""
        return run(self._route_flow(operation))

    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation on the node that owns its keys, together with others for that node."""
        return run_async(self._route_flow(operation))

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out several operations, the reads last and those of one node in one call."""
        joined = join_reads(operations, self.slot_map) if self._has_routed else []
        are_joined = {position for reads in joined for position in reads.positions}
        alone = [position for position in range(len(operations)) if position not in are_joined]
        replies = self._apply_each(operations, alone)
        for reads in joined:
            replies.update(zip(reads.positions, self._apply_joined(reads), strict=True))
        unanswered = [position for position in are_joined if isinstance(replies[position], StateError)]
        replies |= self._apply_each(operations, unanswered)
        return [replies[position] for position in range(len(operations))]

    def _apply_each(self, operations: Sequence[Operation[Any]], positions: list[int]) -> dict[int, Any]:
        replies = super().apply_many([operations[position] for position in positions])
        return dict(zip(positions, replies, strict=True))

    def _apply_joined(self, reads: JoinedReads) -> list[Any]:
        """Return the replies to joined reads, or for each that has none an error."""
        began_ns = MONOTONIC.now_ns()
        try:
            replies = self.node(reads.host_port).apply_joined(reads.operations, began_ns)
        except JoinedReadsRefusedError as error:
            return [error] * len(reads.operations)
        except (StateUnavailableError, StateTimeoutError):
            self.slot_map.mark_unreachable(reads.slot, reads.host_port)
            raise
        for operation, reply in zip(reads.operations, replies, strict=True):
            if not isinstance(reply, StateError):
                self._keep_override(operation, reply, began_ns)
        return replies

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, node by node."""
        return run(self._entries_flow(space))

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without blocking the event loop."""
        return await run_async(self._entries_flow(space))

    def probe(self) -> None:
        """Refresh the slot map and check that every node that owns slots can be used."""
        run(self._refresh_slots_flow())
        for host_port in self.slot_map.owners():
            self.node(host_port).probe()

    def close(self) -> None:
        """Close the connections of blocking callers."""
        for node in list(self._nodes.values()):
            node.close()

    def close_connections(self) -> None:
        """Close the connections of blocking callers; they reopen when needed."""
        for node in list(self._nodes.values()):
            node.close_connections()

    async def aclose(self) -> None:
        """Close all connections, including those of the running event loop."""
        for node in list(self._nodes.values()):
            await node.aclose()

    def after_fork(self) -> None:
        """Reset the lock; the nodes handle the fork themselves."""
        fork_safety.reinit_lock(self._creation_lock)

    def node(self, host_port: HostPort) -> ClusterNode:
        """Return the store of one node."""
        node = self._nodes.get(host_port)
        if node is None:
            with self._creation_lock:
                node = self._nodes.get(host_port) or ClusterNode(self, host_port, self._test_clock)
                self._nodes = {**self._nodes, host_port: node}
        return node

    def _route_flow(self, operation: Operation[R]) -> Flow[R]:
        """Apply an operation, with the override of its limit if its key is spread, and keep overrides."""
        began_ns, spread = MONOTONIC.now_ns(), spread_tag(operation)
        if spread is not None:
            override = yield from self._override_flow(spread.partition(":")[0])
            return (yield from self._send_flow(operation, override))
        try:
            reply = yield from self._send_flow(operation)
        finally:
            if operation.changes_override:
                [name] = operation.script_keys()
                self._override_copies.forget(name, MONOTONIC.now_ns())
        self._keep_override(operation, reply, began_ns)
        return reply

    def _keep_override(self, operation: Operation[Any], reply: Any, began_ns: int) -> None:
        """Keep a copy of an override record that was read, usually by the heartbeat."""
        if isinstance(operation, ReadRecord) and operation.space == OVERRIDE_SPACE:
            self._override_copies.store(key_text(operation.space, operation.key), reply, began_ns)

    def _override_flow(self, limit_name: str) -> Flow[bytes | None]:
        """Return the override record of a limit, from the copy unless it is too old."""
        name, began_ns = key_text(OVERRIDE_SPACE, limit_name), MONOTONIC.now_ns()
        copy = self._override_copies.usable(name, began_ns)
        if copy is not None:
            return copy.record
        record = yield from self._read_flow(OVERRIDE_SPACE, limit_name)
        self._override_copies.store(name, record, began_ns)
        return record

    def _send_flow(self, operation: Operation[R], override: bytes | None = None) -> Flow[R]:
        """Apply an operation on the node that has its keys; follow at most five redirects, wait for moves."""
        slot = operation_slot(operation)
        began_ns, has_routed = MONOTONIC.now_ns(), self._has_routed
        # the first call has to learn the slots and to connect more than once: see pool.py
        seconds = self.timeout if has_routed else self.timeout + CONNECT_ALLOWANCE_SECONDS
        ends_ns = began_ns + int(seconds * 1e9)
        retry_ends_ns = began_ns + int(seconds * _RETRY_SHARE * 1e9)
        hop, hops, is_moving = Hop(self.slot_map.owner(slot), operation, override), 0, False
        while hops <= _HOPS_MAX and MONOTONIC.now_ns() < (retry_ends_ns if is_moving else ends_ns):
            since_ns = began_ns if has_routed else MONOTONIC.now_ns()
            try:
                reply: R = yield ApplyAtNode(self.node(hop.host_port), hop.operation_to_send(), since_ns)
            except ClusterRedirectError as error:
                hop = yield from self._next_hop_flow(hop, error, slot)
                is_moving = error.code != "MOVED"
                hops += not is_moving
            except StateMovingError:  # the node answers
                raise
            except (StateUnavailableError, StateTimeoutError):
                self.slot_map.mark_unreachable(slot, hop.host_port)
                raise
            else:
                self._has_routed = True
                return reply
        if is_moving:
            raise StateMovingError(
                f"{self.address} is moving {state_names(operation)[0]!r} to another node; neither node has "
                "all keys of the operation, and nothing was carried out"
            )
        raise StateUnavailableError(
            f"{self.address} redirected a call too often or for too long; nothing was carried out"
        )

    def _next_hop_flow(self, hop: Hop, error: ClusterRedirectError, slot: int) -> Flow[Hop]:
        """Return the next hop; if a node has only some of the states, send only these, or send later."""
        if error.target is not None and error.code == "MOVED":
            self.slot_map.set_owner(slot, error.target)
            return hop._replace(host_port=error.target, asking=False)
        if error.target is not None and not hop.asking and not (yield from self._has_states_flow(hop)):
            return hop._replace(host_port=error.target, asking=True)
        if hop.asking or hop.states_only:
            yield Sleep(MONOTONIC, _RETRY_SECONDS)
        # back to the owner, which knows where the state is; the other node would create a second one
        owner = self.slot_map.owner(slot)
        return hop._replace(host_port=owner, asking=False, states_only=True)

    def _has_states_flow(self, hop: Hop) -> Flow[bool]:
        """Whether the node that answered ASK may have a state of the operation."""
        if len(hop.declared_names()) == 1:
            return False
        count = CountKeys(state_names(hop.operation))
        try:
            return bool((yield ApplyAtNode(self.node(hop.host_port), count, MONOTONIC.now_ns())))
        except JoinedReadsRefusedError:
            return True

    def _entries_flow(self, space: str) -> Flow[dict[str, bytes]]:
        """Scan the keys of every node, and read each record in a separate call, because slots differ."""
        records: dict[str, bytes] = {}
        for host_port in self.slot_map.owners():
            cursor = b"0"
            while True:
                page: KeyPage = yield Apply(self.node(host_port), ScanKeys(space, cursor))
                for key in page.keys:
                    value = yield from self._read_flow(space, key)
                    records |= {} if value is None else {key: value}
                cursor = page.cursor
                if cursor == b"0":
                    break
        return records

    def _read_flow(self, space: str, key: str) -> Flow[bytes | None]:
        try:
            value: bytes | None = yield Apply(self, ReadRecord(space, key))
        except StateTypeError:  # not a record
            return None
        return value

    def _refresh_slots_flow(self) -> Flow[None]:
        """Read the slot map from the first known node that answers."""
        known = self.slot_map.known_nodes()
        last_error: StateError = StateUnavailableError(f"{self.address} has no nodes")
        for host_port in known:
            try:
                yield CloseConnection(
                    (
                        yield from self.connect_flow(
                            self.endpoint, host_port, self.connect_timeout / len(known)
                        )
                    )
                )
            except Exception as error:
                last_error = translate_error(error, "{}:{}".format(*host_port))
            else:
                return
        raise last_error

    def connect_flow(self, endpoint: Any, host_port: HostPort, seconds: float) -> Flow[Any]:
        """Connect to a node and load its slot map."""
        connection, ranges = yield from connect_and_ask_flow(
            endpoint, host_port, seconds, _CLUSTER_SLOTS_COMMAND
        )
        try:
            self.slot_map.load(ranges, host_port)
        except Exception:
            yield CloseConnection(connection)
            raise
        self._close_removed_nodes()
        return connection

    def _close_removed_nodes(self) -> None:
        """Close idle connections to nodes that own no slots any more."""
        known = set(self.slot_map.known_nodes())
        for host_port, node in list(self._nodes.items()):
            if host_port not in known:
                node.close()


class ClusterNode(RedisStore):
    """One node of a cluster."""

    keeps_changes = False
    uses_hash_tags = True

    def __init__(self, cluster: ClusterStore, host_port: HostPort, clock: Clock | None) -> None:
        self.host_port = host_port
        super().__init__(
            "redis://{}:{}".format(*host_port),
            cluster.timeout,
            clock,
            cluster.connect_timeout,
            route=_NodeRoute(cluster, host_port),
            timeout_max=cluster.timeout_max,
        )

    def apply_joined(self, operations: list[Operation[Any]], began_ns: int) -> list[Any]:
        """Carry out reads of one script, with keys in any slots of this node, in one call."""
        script = operations[0].script._replace(across_slots=True)
        return self._call(ScriptCall(script, operations, self.uses_hash_tags), began_ns)

    def probe_command(self) -> bytes:
        """Return a command without a key, because most keys are on other nodes."""
        return _PROBE_COMMAND

    def translate_call_error(self, error: Exception, call: ScriptCall) -> StateError:
        """Return a redirect for an error that says which node to use."""
        if call.script.across_slots and isinstance(error, self._reply_error):
            return JoinedReadsRefusedError(f"{self.address} refuses joined reads: {error}")
        code = error_code(error)
        if code not in ("MOVED", "ASK", "TRYAGAIN"):
            return super().translate_call_error(error, call)
        host, port = getattr(error, "node_addr", (None, None))
        target = None if port is None else (host or self.host_port[0], int(port))
        return ClusterRedirectError(f"{self.address} says {code}: {error}", code, target)


class _NodeRoute:
    """The route to a node, which also loads the slot map from it."""

    def __init__(self, cluster: ClusterStore, host_port: HostPort) -> None:
        self._cluster = cluster
        self._host_port = host_port

    def connect(self, seconds: float) -> RedisConnection:
        """Connect."""
        connection: RedisConnection = run(
            self._cluster.connect_flow(self._cluster.endpoint, self._host_port, seconds)
        )
        return connection

    def async_connect(self) -> AsyncConnect:
        """Return a function that connects on an event loop."""
        from comporta.stores.redis.connection_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        endpoint = AsyncEndpoint(self._cluster.url)

        async def connect(seconds: float) -> Any:
            return await run_async(self._cluster.connect_flow(endpoint, self._host_port, seconds))

        return connect


class ApplyAtNode(NamedTuple):
    """Effect: apply an operation on a node, for a caller that has been waiting since ``began_ns``."""

    node: ClusterNode
    operation: Operation[Any]
    began_ns: int

    def block(self) -> Any:
        """Apply it, blocking."""
        return self.node.apply_since(self.operation, self.began_ns)

    async def wait(self) -> Any:
        """Apply it, awaiting."""
        return await self.node.pipelines().apply(self.operation)
