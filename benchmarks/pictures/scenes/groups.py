"""Two limits for each request, acquired separately and as a group, while one user exceeds its limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.pictures.simulated import SimulatedClock, arrivals, counts_per_slot, evenly, run_scene
from comporta import LimitConfig, LimitGroup, TokenBucketLimiter
from comporta.cli.sim_charts import Bars, Mark, Panel, Picture, Shade
from comporta.stores.memory import MemoryStore

_ENDS, _FROM, _TO = 30.0, 8.0, 22.0
_USERS = {"ana": evenly(_FROM, _TO, 25), "rui": evenly(0.05, _ENDS, 4)}
Granted = dict[str, list[float]]


def picture() -> Picture:
    """Simulate the same requests both ways."""
    apart, together = _run(grouped=False), _run(grouped=True)
    return Picture(
        "Two limits on every request: 10/s in total, 5/s for each user",
        "Acquired separately, refused requests use capacity that others need; a group charges both limits "
        "or none.",
        [
            _panel("one limit after the other: rui sends 4/s", "rui", apart, 6),
            _panel("the same as a LimitGroup: rui", "rui", together, 6),
            _panel("ana, who sends 25/s for a while and gets 5/s either way", "ana", together, 28),
        ],
        ends=_ENDS,
        every=5,
    )


def _panel(title: str, user: str, granted: Granted, most: float) -> Panel:
    sent, got = counts_per_slot(_USERS[user], 1, _ENDS), counts_per_slot(granted[user], 1, _ENDS)
    refused = [wanted - had for wanted, had in zip(sent, got, strict=True)]
    shades = [Shade(_FROM, _TO, "ana exceeds her limit" if "rui sends" in title else "", "grey")]
    marks: list[Mark] = [*shades, Bars("granted", "blue", got), Bars("refused", "orange", refused, below=got)]
    return Panel(title, marks, most, (0, 5) if user == "ana" else (0, 4), 70)


def _run(*, grouped: bool) -> Granted:
    clock = SimulatedClock()
    store = MemoryStore(clock)
    total = TokenBucketLimiter(LimitConfig(10, 10), store, "total")
    per_user = TokenBucketLimiter(LimitConfig(5, 5), store, "per-user")
    both = LimitGroup(total, per_user)
    granted: Granted = {user: [] for user in _USERS}

    async def apart(user: str) -> bool:
        return await total.acquire() and await per_user.acquire(user)

    async def together(user: str) -> bool:
        return await both.acquire([None, user])

    acquire: Callable[[str], Awaitable[bool]] = together if grouped else apart
    moments = sorted((moment, user) for user, every in _USERS.items() for moment in every)
    users = iter([user for _, user in moments])

    async def request(user: str) -> None:
        if await acquire(user):
            granted[user].append(clock.seconds)

    run_scene(arrivals([moment for moment, _ in moments], lambda: request(next(users))), clock)
    return granted
