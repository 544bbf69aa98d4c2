"""Joining reads of many keys into one call for each node of a cluster.

A heartbeat reads the overrides and circuits of all upstreams. Their keys are in different slots, so no call
may declare them together, and a call for each would cost the cluster more with every upstream. A script that
declares no key may read every key of its node, so reads of one node are sent as one such call. Only reads are
joined: if a node does not have one of the keys (a slot has moved) or refuses the call, they are sent again
one by one, and are redirected like any other operation.

Pure: this module sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from comporta.stores.base import Operation
from comporta.stores.redis.cluster_slots import SlotMap, operation_slot
from comporta.stores.redis.connection import HostPort
from comporta.stores.redis.protocol import BATCHED_MAX


class JoinedReads(NamedTuple):
    """Reads that one node answers in one call.

    ``positions`` are those of the operations among all that were passed to the store; ``slot`` is the slot of
    the first one.
    """

    host_port: HostPort
    slot: int
    positions: list[int]
    operations: list[Operation[Any]]


def join_reads(operations: Sequence[Operation[Any]], slot_map: SlotMap) -> list[JoinedReads]:
    """Return the reads to send together, as far as the owner of their slots is known.

    A read that has no other one to join is left out.
    """
    joined: list[JoinedReads] = []
    latest: dict[tuple[HostPort, str], JoinedReads] = {}
    for position, operation in enumerate(operations):
        if not (operation.is_read and operation.script.batchable):
            continue
        slot = operation_slot(operation)
        owner = slot_map.known_owner(slot)
        if owner is None:
            continue
        reads = latest.get((owner, operation.script.name))
        if reads is None or len(reads.operations) == BATCHED_MAX:
            reads = latest[owner, operation.script.name] = JoinedReads(owner, slot, [], [])
            joined.append(reads)
        reads.positions.append(position)
        reads.operations.append(operation)
    return [reads for reads in joined if len(reads.operations) > 1]
