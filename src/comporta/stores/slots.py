"""Which part of a cluster a key lives in, and which node has that part.

Keys of one script call must live in one of 16,384 slots. The server puts keys that carry the same tag (what
stands in braces) into the same slot, so the beginning of a limit's name becomes the tag: its states, its
change and all limits whose names begin alike before a dot live together. Pure: no connection, no clock.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable, Sequence
from typing import Any

from comporta.stores.base import Operation
from comporta.stores.connecting import Place

SLOTS = 16384
NODES_MAX = 1000
_TAG = re.compile(r"(?s).[^:.]*")
_TAGGED = re.compile(r"(?s)\{(.[^:.]*?)\}(?=[:.]|\Z)(.*)\Z")


def tagged(name: str) -> str:
    """Put the second part of a key, up to a colon or a dot, in braces."""
    space, colon, rest = name.partition(":")
    found = _TAG.match(rest)
    if found is None:
        return name
    return f"{space}{colon}{{{found[0]}}}{rest[found.end() :]}"


def untagged(rest: str) -> str:
    """Return what follows the space in a tagged name, as it was before."""
    found = _TAGGED.match(rest)
    return found[1] + found[2] if found else rest


def slot_of(operation: Operation[Any]) -> int:
    """Return the slot all keys of an operation live in."""
    names = [*operation.script.keys, *operation.key_names()]
    slots = {_slot(tagged(name)) for name in names} or {0}
    if len(slots) > 1:
        raise ValueError(
            f"{names[0]!r} and others of one operation live in different parts of the cluster: "
            "limits that are asked together need names that begin alike before a dot, as in 'api.a', 'api.b'"
        )
    return slots.pop()


def _slot(name: str) -> int:
    """Return the slot of a key, by the cluster's own rule: what counts is what stands in the first braces."""
    key = name.encode("utf-8", "surrogatepass")
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key, 0) % SLOTS


class Slots:
    """Who has which slot, as far as it is known; a node that does not have it knows who has.

    Every change is one assignment, so threads need no lock.
    """

    def __init__(self, seeds: Sequence[Place]) -> None:
        self._seeds = list(seeds)
        self._owners: dict[int, Place] = {}
        self._turn = 0

    def place_of(self, slot: int) -> Place:
        """Return who has a slot; or, if that is not known, somebody who can tell."""
        return self._owners.get(slot) or self._anybody()

    def places(self) -> list[Place]:
        """Return all who have slots, or those named in the beginning."""
        return sorted(set(self._owners.values())) or self._seeds

    def known(self) -> list[Place]:
        """Return everybody ever heard of that may be asked for the rest."""
        return list(dict.fromkeys([*self._seeds, *self._owners.values()]))

    def learn(self, slot: int, place: Place) -> None:
        """Note who has a slot, as another node said; all callers of a tick are told the same."""
        if self._owners.get(slot) != place and len(set(self._owners.values())) < NODES_MAX:
            self._owners = {**self._owners, slot: place}

    def load(self, ranges: Iterable[Any], teller: Place) -> None:
        """Note who has which slot, as ``CLUSTER SLOTS`` has it; who names no host means the teller's."""
        owners: dict[int, Place] = {}
        for first, last, primary, *_ in ranges:
            host = (primary[0] or b"").decode()
            place = (host if host not in ("", "?") else teller[0], int(primary[1]))
            owners.update(dict.fromkeys(range(int(first), int(last) + 1), place))
        self._owners = owners

    def forget(self, slot: int, place: Place) -> None:
        """A node cannot be used for a slot: ask others who has its slots by now."""
        self._turn += 1
        if self._owners.get(slot) != place:
            return  # another caller of the same tick was first
        self._owners = {slot: owner for slot, owner in self._owners.items() if owner != place}

    def _anybody(self) -> Place:
        known = self.known()
        return known[self._turn % len(known)]
