"""Hash slots of a cluster: which slot a key is in, and which node owns a slot.

All keys of one script call must be in one of 16,384 slots. The server puts keys with the same hash tag (the
text in braces) into the same slot, so the first part of a name, up to a colon or a dot, becomes the tag:
names with the same first part share a slot.

The keys of a limit are an exception: there may be very many, and a decision is about one of them. They are
spread over the slots, each with its whole name as its tag, unless the name of the limit has a dot, which
keeps the limits of a group together. The override record of the limit has one slot, so a decision on a spread
key carries a copy of it (``override_copies.py``).

The slot of a key depends only on its name, so that all programs agree. Pure: no connection, no clock.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any

from comporta.stores.base import Operation, key_text
from comporta.stores.redis.connection import HostPort

SLOT_COUNT = 16384
NODES_MAX = 1000

SPREAD_SPACE = "rate_limiter"
"""The space whose keys are spread: the states of limits."""

OVERRIDE_SPACE = "rate_limiter_change"
"""The space of the override records of limits: an operation on a spread key declares a name in the slot of
that key instead, where there is no record."""

_FOLLOWING_SPACES = (OVERRIDE_SPACE, "rate_limiter_reports")
"""Spaces whose names, in an operation on a spread key, are put into its slot."""

_SPREAD = re.compile(rf"(?s){SPREAD_SPACE}:([^:]+):.+")
_DERIVED_NAME = re.compile(r"(?:\A|\.)[A-Za-z_]+-[0-9.e-]+-[0-9]+\Z")
"""A name, or the end of a name, that a limiter derives from its numbers; its dots are ignored."""

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


def spread_tag(operation: Operation[Any]) -> str | None:
    """Return the hash tag of the spread key that an operation concerns; ``None`` if there is none."""
    for name in operation.script_keys():
        if _is_spread(name):
            return name[len(SPREAD_SPACE) + 1 :]
    return None


def state_names(operation: Operation[Any]) -> list[str]:
    """Return the keys that one node must have to decide: those of the states, without attached ones.

    All keys, if the script keeps the states under other names.
    """
    keys = [*operation.script.keys, *operation.script_keys()]
    states = [key_text(key.space, key.key) for key in operation.state_keys if not key.type.attached]
    return states if set(states) <= set(keys) else keys


def tagged_names(names: Iterable[str], spread: str | None) -> list[str]:
    """Return the names of an operation's keys with their hash tags; ``spread`` is its ``spread_tag``."""
    return [_tagged_name(name, spread) for name in names]


def _tagged_name(name: str, spread: str | None) -> str:
    if spread is None:
        return add_hash_tag(name)
    space, _, rest = name.partition(":")
    if space in _FOLLOWING_SPACES:
        return f"{space}:{{{spread}}}:{rest}"
    return f"{space}:{{{rest}}}" if _is_spread(name) else add_hash_tag(name)


def _is_spread(name: str) -> bool:
    """Whether a name is a key of a limit whose keys are spread."""
    parts = _SPREAD.match(name)
    return parts is not None and "." not in _DERIVED_NAME.sub("", parts[1])


def operation_slot(operation: Operation[Any]) -> int:
    """Return the slot of all keys of an operation; ``ValueError`` if they are in several."""
    names = [*operation.script.keys, *operation.script_keys()]
    slots = {_key_slot(name) for name in tagged_names(names, spread_tag(operation))} or {0}
    if len(slots) > 1:
        raise ValueError(
            f"{names[0]!r} and other keys of one operation are in different slots of the cluster: "
            "limits in one group need names with a dot that begin alike before it, such as 'api.a' and "
            "'api.b'"
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
    """Which node owns which slot, as far as this process knows; nodes redirect calls for other slots.

    Every update is one assignment, so threads need no lock.
    """

    def __init__(self, seeds: Sequence[HostPort]) -> None:
        self._seeds = list(seeds)
        self._owners: dict[int, HostPort] = {}
        self._rotation = 0

    def owner(self, slot: int) -> HostPort:
        """Return the owner of a slot; if it is not known, a node that can redirect the call."""
        return self._owners.get(slot) or self._any_node()

    def known_owner(self, slot: int) -> HostPort | None:
        """Return the owner of a slot; ``None`` if it is not known."""
        return self._owners.get(slot)

    def owners(self) -> list[HostPort]:
        """Return all nodes that own slots, or the seeds if none is known."""
        return sorted(set(self._owners.values())) or self._seeds

    def known_nodes(self) -> list[HostPort]:
        """Return the seeds and all known owners."""
        return list(dict.fromkeys([*self._seeds, *self._owners.values()]))

    def set_owner(self, slot: int, node: HostPort) -> None:
        """Set the owner of a slot that another node named. All calls of one tick bring the same answer."""
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
        """Drop all slots of an unreachable node, because other nodes know their new owners."""
        self._rotation += 1
        if self._owners.get(slot) != node:
            return  # another caller of the same tick has already done so
        self._owners = {slot: owner for slot, owner in self._owners.items() if owner != node}

    def _any_node(self) -> HostPort:
        known = self.known_nodes()
        return known[self._rotation % len(known)]
