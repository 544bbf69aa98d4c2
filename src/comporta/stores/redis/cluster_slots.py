"""Hash slots of a cluster: which slot a key is in, and which node owns a slot.

All keys of one script call must be in one of 16,384 slots. The server puts keys with the same hash tag (the
text in braces) into the same slot, so the first part of a limit's name, up to a colon or a dot, becomes the
tag: the limit's states, its override and all limits with the same first part share a slot. Pure: no
connection, no clock.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any

from comporta.stores.base import Operation
from comporta.stores.redis.connection import HostPort

SLOT_COUNT = 16384
NODES_MAX = 1000
_TAG = re.compile(r"(?s).[^:.]*")
_TAGGED = re.compile(r"(?s)\{(.[^:.]*?)\}(?=[:.]|\Z)(.*)\Z")


def add_hash_tag(name: str) -> str:
    """Put the second part of a key, up to a colon or a dot, in braces."""
    space, colon, rest = name.partition(":")
    tag = _TAG.match(rest)
    if tag is None:
        return name
    return f"{space}{colon}{{{tag[0]}}}{rest[tag.end() :]}"


def strip_hash_tag(rest: str) -> str:
    """Return the part of a tagged name after the space without its braces."""
    tagged = _TAGGED.match(rest)
    return tagged[1] + tagged[2] if tagged else rest


def operation_slot(operation: Operation[Any]) -> int:
    """Return the slot of all keys of an operation; ``ValueError`` if they are in several."""
    names = [*operation.script.keys, *operation.script_keys()]
    slots = {_key_slot(add_hash_tag(name)) for name in names} or {0}
    if len(slots) > 1:
        raise ValueError(
            f"{names[0]!r} and other keys of one operation are in different slots of the cluster: "
            "limits in one group need names that begin alike before a dot, such as 'api.a' and 'api.b'"
        )
    return slots.pop()


def _key_slot(name: str) -> int:
    """Return the slot of a key, by the cluster's rule: only the text in the first braces counts."""
    key = name.encode("utf-8", "surrogatepass")
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOT_COUNT


class SlotMap:
    """Which node owns which slot, as far as this process knows; a node redirects calls for others' slots.

    Every update is one assignment, so threads need no lock.
    """

    def __init__(self, seeds: Sequence[HostPort]) -> None:
        self._seeds = list(seeds)
        self._owners: dict[int, HostPort] = {}
        self._rotation = 0

    def owner(self, slot: int) -> HostPort:
        """Return the owner of a slot; if it is not known, a node that can redirect the call."""
        return self._owners.get(slot) or self._any_node()

    def owners(self) -> list[HostPort]:
        """Return all nodes that own slots, or the seeds if none is known."""
        return sorted(set(self._owners.values())) or self._seeds

    def known_nodes(self) -> list[HostPort]:
        """Return the seeds and all known owners."""
        return list(dict.fromkeys([*self._seeds, *self._owners.values()]))

    def set_owner(self, slot: int, node: HostPort) -> None:
        """Set the owner of a slot, as another node named it. Calls of one tick all bring the same answer."""
        if self._owners.get(slot) != node and len(set(self._owners.values())) < NODES_MAX:
            self._owners = {**self._owners, slot: node}

    def load(self, ranges: Iterable[Any], source: HostPort) -> None:
        """Load the reply to ``CLUSTER SLOTS``; an empty host name means that of ``source``."""
        owners: dict[int, HostPort] = {}
        for first, last, primary, *_ in ranges:
            host = (primary[0] or b"").decode()
            node = (host if host not in ("", "?") else source[0], int(primary[1]))
            owners.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        self._owners = owners

    def mark_unreachable(self, slot: int, node: HostPort) -> None:
        """Forget all slots of a node that cannot be reached: other nodes know their new owners."""
        self._rotation += 1
        if self._owners.get(slot) != node:
            return  # another caller of the same tick has already done so
        self._owners = {slot: owner for slot, owner in self._owners.items() if owner != node}

    def _any_node(self) -> HostPort:
        known = self.known_nodes()
        return known[self._rotation % len(known)]
