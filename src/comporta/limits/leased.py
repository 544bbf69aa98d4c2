"""A limit on lease: this process takes many units in one step, and decides with what it has in hand.

A lease is used for half of its life at the most, counted from before it was asked for. So whatever the way to
the server takes, the state holds the units back for longer than anybody uses them. Who has used up a lease
asks for the next one, and says in the same step what became of the last. What is not used is given back
before the lease ends (``rounds.py``), when the limiter is closed, and when the program ends.

A lease is as large as its use: twice as large after one that was used up, half as large after one that was
not, and never more than a fair share of the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, cast

from comporta import forks
from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.asking import Ask, InForce
from comporta.limits.config import WINDOWS, LimitConfig, LimitStrategy
from comporta.limits.key import state_key
from comporta.limits.lease import Lease, LeaseOperation, Lender
from comporta.limits.rounds import ROUNDS
from comporta.limits.rule import Ended, Lending
from comporta.limits.sliding_window import LEASE_PART
from comporta.limits.take import Asked
from comporta.stores.base import Bound, Busy, Stepper, Store
from comporta.stores.effects import Apply
from comporta.stores.memory import ONE_THREAD_AT_A_TIME

HANDS_MAX = 10_000
"""For so many keys something can be in hand; the others are asked about each time."""

_GIVING_BACK_NS_MAX = 1_000_000_000

REFUSAL_NS_MAX = 100_000_000
"""A refusal is remembered for so long at the most: others may give back."""


class Hand:
    """What is in hand for one key: what is left of a lease, or the memory of a refusal."""

    __slots__ = (
        *("asking", "due_ns", "ends_ns", "free_ns", "key", "left", "lent", "name", "refused_ns"),
        *("size", "visit_ns", "want"),
    )

    def __init__(self, key: str) -> None:
        self.key = key
        self.left = self.lent = self.size = self.name = 0
        self.want = 1
        self.ends_ns = self.due_ns = self.visit_ns = self.refused_ns = self.free_ns = 0
        self.asking = False


class LeasedBound:
    """A limit with a lease, tied to a store; ``attempt`` decides without asking anybody.

    It takes no lock, for the reason that ``stores/memory.py`` gives: between the look at what is left and the
    write there is no call and no loop. Where threads really run at once it goes by the lock like all others.
    """

    def __init__(self, inner: Bound, store: Store, asked: Asked, config: LimitConfig) -> None:
        self._inner = inner
        self.store = store
        self.name = asked.name
        self._lender = Lender(cast(Lending, asked.rule), asked, config.lease_us // 2)
        self._strategy = config.strategy
        self._now_ns = store.clock.now_ns
        self._hands: dict[Any, Hand] = {}
        self._sweep_ns = 0
        self._lock = Lock()
        self.attempt = self._hot_path()
        forks.register(self)

    @property
    def inner(self) -> Bound:
        """Where it is decided what nothing is in hand for."""
        return self._inner

    @property
    def stepper(self) -> Stepper:
        """The rule in force."""
        return self._inner.stepper

    async def stepper_async(self) -> Stepper:
        """Return the rule in force, without holding up the event loop."""
        return await self._inner.stepper_async()

    def take(self, key: Any, cost: int) -> int:
        """Decide with what is in hand, or ask; blocking."""
        return run(self._taking(key, cost))

    def take_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Decide with what is in hand, or ask; awaiting."""
        return run_async(self._taking(key, cost))

    def give_back(self) -> None:
        """Give back all that is in hand."""
        run(self.giving_back())

    def giving_back(self) -> Flow[None]:
        """The flow of ``give_back``; what a store in trouble or far away does not take ends by itself."""
        ends_ns = MONOTONIC.now_ns() + _GIVING_BACK_NS_MAX
        for hand in list(self._hands.values()):
            if MONOTONIC.now_ns() > ends_ns:
                return
            ended = self._ended(hand)
            if ended.unused:
                try:
                    yield Apply(self.store, LeaseOperation(self._lender, hand.key, 0, 0, ended))
                except StateError:
                    return

    def in_hand(self) -> int:
        """Return how many units can be used without asking, those of all keys together."""
        now_ns = self._now_ns()
        # a key and its text have one hand together
        hands = {id(hand): hand for hand in list(self._hands.values())}
        return sum(hand.left for hand in hands.values() if now_ns < hand.ends_ns)

    def ask_again(self, key: str) -> None:
        """Forget a refusal: something was given back here."""
        hand = self._hands.get(key)
        if hand is not None:
            hand.refused_ns = 0

    def recalling(self) -> Flow[None]:
        """Let go of all that is in hand: the limit was lowered or paused here, and leases are of before."""
        yield from self.giving_back()
        self.ask_all_again()

    def ask_all_again(self) -> None:
        """Forget all refusals: the limit was changed here."""
        for hand in list(self._hands.values()):
            hand.refused_ns = 0

    def drop(self, key: str) -> None:
        """Let go of what is in hand, without giving it back: the key's state was deleted here."""
        hand = self._hands.get(key)
        if hand is not None:
            self._ended(hand)
            hand.refused_ns = 0

    def after_fork(self) -> None:
        """Leave the parent's leases to the parent."""
        self._hands.clear()
        forks.renew(self._lock)

    def _hot_path(self) -> Callable[[Any, int], int]:
        """Return ``attempt``, all of whose names are local."""
        get, now_ns, lock = self._hands.get, self._now_ns, self._lock

        def attempt(key: Any, cost: int) -> int:
            hand = get(key)
            if hand is not None:
                now = now_ns()
                if now < hand.ends_ns:
                    # one step for all other threads: no call and no loop from here to the write
                    left = hand.left - cost
                    if left >= 0:
                        hand.left = left
                        return 0
                if cost == 1 and now < hand.refused_ns and not hand.left:
                    return -((now - hand.free_ns) // 1000)
            raise Busy

        def attempt_alone(key: Any, cost: int) -> int:
            with lock:
                return attempt(key, cost)

        return attempt if ONE_THREAD_AT_A_TIME else attempt_alone

    def _taking(self, key: Any, cost: int) -> Flow[int]:
        """Decide with what is in hand, or ask for a lease; while another does that, just for this one."""
        text = state_key(key)
        with suppress(Busy):
            return self.attempt(text, cost)
        hand, mine = self._hand(key, text), False
        try:
            with self._lock:
                if hand is not None and not hand.asking:
                    hand.asking = mine = True
            if hand is None or not mine:
                return (yield from self._exactly(key, text, cost))
            return (yield from self._leasing(hand, cost))
        finally:
            if hand is not None and mine:
                hand.asking = False

    def _exactly(self, key: Any, text: str, cost: int) -> Flow[int]:
        wait_us: int = yield Ask(self._inner, key, cost)
        if wait_us:
            with suppress(Busy):  # a lease may have come meanwhile
                return self.attempt(text, cost)
        return wait_us

    def _leasing(self, hand: Hand, cost: int) -> Flow[int]:
        rule: Lending = yield InForce(self._inner)
        if rule is not self._lender.rule:
            self._lender = Lender(rule, self._lender.asked, self._lender.life_us)
        sent_ns = self._now_ns()
        ended = self._ended(hand)
        operation = LeaseOperation(self._lender, hand.key, cost, max(cost, hand.want), ended)
        lease: Lease = yield Apply(self.store, operation)
        return self._landed(hand, cost, sent_ns, lease)

    def _share(self) -> int:
        """Return the most that one worker may lease: all together half of what there is.

        What is lost with a worker is lost to a window until that is over, so there it is a small part.
        """
        if self._strategy is LimitStrategy.LEAKY_BUCKET:
            return 1
        parts: int = 2 * max(1, getattr(self.store, "workers", 1))
        if self._strategy in WINDOWS:
            parts = max(parts, LEASE_PART)
        return self._lender.rule.numbers.capacity // parts

    def _ended(self, hand: Hand) -> Ended:
        """Take a lease out of a hand, and learn from its use how large the next should be."""
        now_ns, share = self._now_ns(), self._share()
        with self._lock:
            left, hand.left = hand.left, 0  # in one step: others may be using it
            ended = Ended(hand.name, hand.lent, left)
            if left:
                hand.refused_ns = 0  # what is given back can be had again
            if not left and now_ns < hand.ends_ns:
                hand.want = 2 * hand.want
            elif left and 2 * left >= hand.size:
                hand.want = hand.want // 2
            hand.want = max(1, min(hand.want, share))
            hand.lent = hand.size = hand.ends_ns = 0
        return ended

    def _landed(self, hand: Hand, cost: int, sent_ns: int, lease: Lease) -> int:
        """Take a lease into a hand, and remember from when on there will be more."""
        if lease.granted:
            life_ns, left = 1000 * lease.life_us, lease.granted - cost
            with self._lock:
                hand.name, hand.lent, hand.size = lease.name, left, lease.granted
                hand.ends_ns, hand.due_ns = sent_ns + life_ns, sent_ns + 3 * life_ns // 4
                hand.left = left  # last: from here on it is used
            if left:
                self._watch(hand)
        if lease.granted or cost == 1:
            hand.free_ns = sent_ns + 1000 * lease.wait_us
            hand.refused_ns = min(hand.free_ns, sent_ns + REFUSAL_NS_MAX)
        return 0 if lease.granted else lease.wait_us

    def _watch(self, hand: Hand) -> None:
        """Have somebody come by before the lease ends; on a clock moved by hand nobody does."""
        if hand.visit_ns <= self._now_ns() and self.store.clock is MONOTONIC:
            hand.visit_ns = hand.due_ns
            ROUNDS.watch(hand.due_ns, partial(self._visit, hand), self)

    def _visit(self, hand: Hand) -> None:
        """End a lease that is about to end by itself, unless a later one came in its place."""
        now_ns = self._now_ns()
        if now_ns < hand.due_ns:
            self._watch(hand)
        elif now_ns < hand.ends_ns:
            ended = self._ended(hand)
            self.store.apply(LeaseOperation(self._lender, hand.key, 0, 0, ended))

    def _hand(self, key: Any, text: str) -> Hand | None:
        """Return the hand of a key, or nothing if there are too many."""
        with self._lock:
            hand = self._hands.get(text)
            if hand is None:
                if len(self._hands) >= HANDS_MAX:
                    self._sweep()
                if len(self._hands) >= HANDS_MAX:
                    return None
                hand = self._hands[text] = Hand(text)
            if not isinstance(key, str):
                self._hands[key] = hand
        return hand

    def _sweep(self) -> None:
        """Forget keys that nothing is in hand for, but not more often than that can change for many."""
        now_ns = self._now_ns()
        if now_ns >= self._sweep_ns:
            self._sweep_ns = now_ns + 1000 * self._lender.life_us
            for key, hand in list(self._hands.items()):
                if not hand.asking and now_ns >= max(hand.ends_ns, hand.refused_ns):
                    del self._hands[key]


def on_lease(store: Store) -> dict[str, int]:
    """Return how many units this process has in hand of each limit of a state; of the others nothing."""
    found: Counter[str] = Counter()
    for bound in ROUNDS.holders():
        if isinstance(bound, LeasedBound) and bound.store is store:
            found[bound.name] += bound.in_hand()
    return {name: units for name, units in found.items() if units > 0}
