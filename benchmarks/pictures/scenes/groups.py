"""Two limits for each request, asked one after the other and as one group, when one user asks too much."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.pictures.drawing import Bars, Mark, Panel, Picture, Shade
from benchmarks.pictures.simulated import SimulatedClock, arrivals, counted, evenly, played
from comporta import LimitConfig, LimitGroup, TokenBucketLimiter
from comporta.stores.memory import MemoryStore

_ENDS, _FROM, _TO = 30.0, 8.0, 22.0
_USERS = {"ana": evenly(_FROM, _TO, 25), "rui": evenly(0.05, _ENDS, 4)}
Granted = dict[str, list[float]]


def picture() -> Picture:
    """Play the same requests both ways."""
    apart, together = _played(grouped=False), _played(grouped=True)
    return Picture(
        "Two limits on every request: 10/s for everybody, 5/s for each user",
        "Asked one after the other, refused requests use up what others need; a group charges both limits, "
        "or none.",
        [
            _panel("one limit after the other: rui asks 4/s", "rui", apart, 6),
            _panel("the same as a LimitGroup: rui", "rui", together, 6),
            _panel("ana, who asks 25/s for a while and gets her 5/s either way", "ana", together, 28),
        ],
        ends=_ENDS,
        every=5,
    )


def _panel(title: str, user: str, granted: Granted, most: float) -> Panel:
    asked, got = counted(_USERS[user], 1, _ENDS), counted(granted[user], 1, _ENDS)
    refused = [wanted - had for wanted, had in zip(asked, got, strict=True)]
    shades = [Shade(_FROM, _TO, "ana asks for too much" if "rui asks" in title else "", "grey")]
    marks: list[Mark] = [*shades, Bars("granted", "blue", got), Bars("refused", "orange", refused, below=got)]
    return Panel(title, marks, most, (0, 5) if user == "ana" else (0, 4), 70)


def _played(*, grouped: bool) -> Granted:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    everybody = TokenBucketLimiter(LimitConfig(10, 10), store, "everybody")
    each = TokenBucketLimiter(LimitConfig(5, 5), store, "each")
    both = LimitGroup(everybody, each)
    granted: Granted = {user: [] for user in _USERS}

    async def apart(user: str) -> bool:
        return await everybody.acquire() and await each.acquire(user)

    async def together(user: str) -> bool:
        return await both.acquire([None, user])

    ask: Callable[[str], Awaitable[bool]] = together if grouped else apart
    moments = sorted((moment, user) for user, every in _USERS.items() for moment in every)
    users = iter([user for _, user in moments])

    async def request(user: str) -> None:
        if await ask(user):
            granted[user].append(clock.seconds)

    played(arrivals([moment for moment, _ in moments], lambda: request(next(users))), clock)
    return granted
