"""The permits of one limit: their state, its layout in shared memory, and a worker's share of them.

A permit has an owner and a deadline. The operations on permits are in ``operation.py``, the order of waiting
processes in ``fairness_queue.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from comporta.limits.concurrency.fairness_queue import Claim, Claims
from comporta.runtime import RUNTIME
from comporta.stores.base import GONE, State, StateKey, StateType
from comporta.stores.outage_info import Outage

PERMIT_SPACE = "concurrency"

SHARED_PERMITS_MAX = 200
"""How many permits of one limit fit into a store whose states have a maximum size, such as ``shared://``."""

_ENTRIES_MAX = SHARED_PERMITS_MAX + 10
"""How many permits and claims fit there together; claims get the room that the permits leave."""

_HEAD = Struct("<HH")
_ENTRY = Struct("<qQI")
EMPTY_PERMITS: State = ((), ())

HeldPermit = tuple[int, str]
"""The deadline of a permit in µs, and its text, ``id owner``."""

HeldPermits = tuple[HeldPermit, ...]
"""The permits in use."""


def _no_permits(now_us: int) -> HeldPermits:
    return ()


class Permit(NamedTuple):
    """The right to one call in flight: a unique ``id``, and the ``owner`` that holds it (``host:pid``)."""

    id: str
    owner: str

    def __str__(self) -> str:
        return f"{self.id} {self.owner}"


class PermitHolder(NamedTuple):
    """The ``owner`` of a permit (``host:pid``), and the seconds until the permit expires."""

    owner: str
    seconds_left: float


def new_permit() -> Permit:
    """Return a permit for this process; a forked child is another owner."""
    return Permit(RUNTIME.random_bytes(8).hex(), f"{RUNTIME.host()}:{RUNTIME.pid()}")


class _PermitsCodec:
    """The counts of permits and claims, then each one's deadline, id (start for a claim) and process.

    All owners are on this machine. If there is no room, the youngest claims are dropped, and of the permits
    that were registered beyond their number the ones that expire first.
    """

    size = _HEAD.size + _ENTRIES_MAX * _ENTRY.size

    @staticmethod
    def pack(*state: Any) -> bytes:
        permits, claims = state[0][-_ENTRIES_MAX:], state[1]
        claims = claims[: _ENTRIES_MAX - len(permits)]
        entries = [
            *((deadline_us, int(text[:16], 16), _pid(text)) for deadline_us, text in permits),
            *((ends_us, since_us, _pid(owner)) for since_us, owner, ends_us in claims),
        ]
        return _HEAD.pack(len(permits), len(claims)) + b"".join(_ENTRY.pack(*entry) for entry in entries)

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        count, claims = _HEAD.unpack_from(buffer, offset)
        start, host = offset + _HEAD.size, RUNTIME.host()
        entries = [*_ENTRY.iter_unpack(buffer[start : start + (count + claims) * _ENTRY.size])]
        return (
            tuple((ends_us, f"{identity:016x} {host}:{pid}") for ends_us, identity, pid in entries[:count]),
            tuple(Claim(since_us, f"{host}:{pid}", ends_us) for ends_us, since_us, pid in entries[count:]),
        )


class _PermitsStateType(StateType):
    """State: the permits in use, the next one to expire first, and the claims of waiting processes."""

    name = "permits"
    codec = _PermitsCodec()

    def expires_us(self, state: State) -> int:
        """Return when the last permit and the last claim have expired."""
        permits, claims = state
        return int(max(*(held[0] for held in permits[-1:]), *(claim.ends_us for claim in claims), 0))


PERMITS = _PermitsStateType()


class PermitPool(NamedTuple):
    """The permits of one limit: how many there are, and how long each may be held.

    ``own_permits`` returns the permits that this process holds at a time of the local clock.
    """

    name: str
    max_permits: int
    permit_ttl_us: int
    own_permits: Callable[[int], HeldPermits] = _no_permits

    @property
    def is_local(self) -> bool:
        """Whether this is a worker's share during an outage."""
        return False

    @property
    def state_key(self) -> StateKey:
        """The state of the limit."""
        return StateKey(PERMIT_SPACE, self.name, PERMITS)

    def local_share(self, outage: Outage) -> PermitPool:
        """Return this worker's share: at least one permit, but none if the worker has no room."""
        share = 0 if outage.full else max(1, self.max_permits // outage.worker_count)
        return LocalPermitPool(*self._replace(max_permits=share))

    def held_permits(self, state: State | None, now_us: int) -> HeldPermits:
        """Return the permits in use; shorten a deadline too far ahead, which a clock set back can cause."""
        latest_us = now_us + self.permit_ttl_us
        permits, _ = state or EMPTY_PERMITS
        return tuple((min(held[0], latest_us), held[1]) for held in permits if held[0] > now_us)


class LocalPermitPool(PermitPool):
    """A worker's share of the permits during an outage; permits that it already held count against it."""

    __slots__ = ()

    @property
    def is_local(self) -> bool:
        """Return true."""
        return True

    def held_permits(self, state: State | None, now_us: int) -> HeldPermits:
        """Return the permits in use, including those of the shared store that this process holds."""
        deadlines = {permit: deadline_us for deadline_us, permit in super().held_permits(state, now_us)}
        for deadline_us, permit in self.own_permits(now_us):
            deadlines[permit] = max(deadline_us, deadlines.get(permit, 0))
        return tuple((deadline_us, permit) for permit, deadline_us in deadlines.items())


def changed_permits(old: State | None, permits: HeldPermits, claims: Claims) -> State | None:
    """Return the new state of a limit's permits; ``None`` if it has not changed."""
    new = (tuple(sorted(permits)), claims)
    if new == (old or EMPTY_PERMITS):
        return None
    return GONE if new == EMPTY_PERMITS else new


def _pid(owner: str) -> int:
    return int(owner.rpartition(":")[2])
