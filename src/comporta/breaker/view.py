"""What a worker knows of a circuit, and for how long that is good enough to decide by.

On ``memory://`` it is exact: nobody else can change the circuit, so every step updates it, and only time has
to be watched. On states that others share it is at most ``staleness`` old: the keeper's thread refreshes it
as long as the breaker is in use, and whoever finds it too old asks first. While a worker is on its own
nothing is decided from here: every question goes to its own circuit, which began as the shared one was known.
"""

from __future__ import annotations

import time
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta import events, forks
from comporta.breaker.admission import FORCES, PHASES, Admission, owner
from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import Known, Step
from comporta.breaker.state import (
    CLOSED,
    EMPTY,
    FAIL,
    FAILURES_US,
    HALF_OPEN,
    LOOK,
    OPEN,
    OPENED,
    RAMP,
    RAMPED,
    RESET,
    SHUT,
    SUCCEED,
    UNCHANGED,
    Asked,
    Circuit,
    Forced,
    Reply,
)
from comporta.chance import fraction
from comporta.clock import SECOND_US
from comporta.metrics import current_metrics
from comporta.steps import WHOLE
from comporta.stores.base import Store
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.workers import BEAT_SECONDS, WORKERS_MAX

IN_USE_NS = 10_000_000_000
"""For how long after its last use the view of a breaker is kept fresh."""

ON_THE_WAY_US = 50_000
"""How long a result may be under way to a server: a success is taken to be that much older than it seems."""

_TELLING = (LOOK, FAIL, SUCCEED)
"""The verbs that take what was counted along; the others would drop it."""

_NEVER_NS = 2**62
_ENOUGH_NS = int(1.3 * BEAT_SECONDS * 1e9)
_TO = {OPENED: "open", SHUT: "closed", RAMPED: "ramp", RESET: "closed"}


class News(NamedTuple):
    """Something learnt that people want to know of."""

    kind: str
    text: str
    severity: str


class View:
    """What this process knows of one circuit on one store.

    For the hot path: ``standing`` is the admission for everybody as long as the circuit is closed and nothing
    has failed; where it is not ``exact``, only until ``good_until_ns``. ``plain``: of a success then no more
    is kept than ``succeeded_ns``, and where the view is exact not even that.
    """

    def __init__(self, store: Store, name: str, config: BreakerConfig) -> None:
        self.store = store
        self.name = name
        self.config = config
        self.rules = config.rules
        self.exact = isinstance(store, MemoryStore)
        self.instant = self.exact or (isinstance(store, FailoverStore) and store.local)
        self.timed = config.slow_seconds is not None
        self.plain = not self.rules.windowed
        self.now_ns = store.clock.now_ns
        self.standing: Admission | None = None
        self.good_until_ns = 0
        self.reply: Reply | None = None
        self.used = False
        self.succeeded_ns = -1
        self.calls = 0
        self.slow = 0
        self._until_ns = 0
        self._opened_ns = -1
        self._moment_us = 0
        self._used_ns = -IN_USE_NS
        self._due_ns = 0
        self._staleness_ns = round(config.staleness * 1e9)
        self._slow_ns = round((config.slow_seconds or 0) * 1e9)
        self._counted_ns = 0
        self._window_ns = self.rules.window_us * 1000
        self._telling_ns = max(self.rules.slice_us * 1000, 0 if self.instant else _ENOUGH_NS)
        self._lock = Lock()
        forks.register(self)
        if isinstance(store, FailoverStore):
            store.keeper.watch(self)

    def admit_now(self) -> Admission | None:
        """Decide from what is known; nothing if the state has to be asked."""
        reply, now_ns = self.reply, self.now_ns()
        if reply is None or now_ns >= self.good_until_ns:
            return None
        self.used = True
        if reply.phase == HALF_OPEN and not reply.left_us:
            return None
        return self.admission(reply, now_ns)

    def admission(self, reply: Reply, now_ns: int) -> Admission:
        """Return what a reply means for a call that would be made now."""
        if reply.probe:
            return Admission(PHASES[HALF_OPEN], reply.generation, reply.probe, now_ns)
        if reply.phase == CLOSED or (reply.phase == RAMP and fraction() * WHOLE < reply.share):
            return Admission(PHASES[reply.phase], reply.generation, 0, now_ns)
        return Admission(
            PHASES[reply.phase],
            reply.generation,
            allowed=False,
            retry_after=max(0, self._until_ns - now_ns) / 1e9,
            why=reply.why,
            since=self.since(),
        )

    def holds(self, admission: Admission) -> bool:
        """Whether an admission is a probe whose time is not over; after that another may have it."""
        left_ns = admission.began_ns + self.rules.probe_us * 1000 - self.now_ns()
        return bool(admission.probe) and left_ns > 0

    def unknown(self) -> Admission:
        """Return an admission for a call of which nothing is known but that it ended now."""
        reply = self.reply
        return Admission(PHASES[CLOSED], 0 if reply is None else reply.generation, 0, self.now_ns())

    def succeed_now(self, admission: Admission) -> bool:
        """Note a success; false if the state has to be told."""
        if admission is not self.standing:
            if admission.probe:
                return False
            if self.outdated(admission):
                return True
            self.note_slow(admission)
        if not self.exact:
            self.used = True
            self.succeeded_ns = self.now_ns()
        recent = self.plain or self.count_success()
        if admission is self.standing:
            return recent
        reply = self.reply
        failed = reply is not None and reply.failures and reply.phase in (CLOSED, RAMP)
        return recent and not self.slow and not failed

    def count_success(self) -> bool:
        """Count a success for the window; false if those before it should be told before they are too old.

        Where a keeper looks after the view it tells them in time; nobody else does.
        """
        now_ns = self.now_ns()
        if not self.calls or now_ns - self._counted_ns >= self._window_ns:
            self.calls, self._counted_ns = 0, now_ns
        self.calls += 1
        return now_ns - self._counted_ns < self._telling_ns

    def outdated(self, admission: Admission) -> bool:
        """Whether results of this admission change nothing any more, as far as is known."""
        reply = self.reply
        return reply is not None and reply.generation not in (0, admission.generation)

    def note_slow(self, admission: Admission) -> None:
        """Note whether a call was slow, however it ended."""
        if self.timed and self.now_ns() - admission.began_ns >= self._slow_ns:
            self.slow += 1

    def step(self, verb: str, admission: Admission | None = None, *, probe: int = 0, why: str = "") -> Step:
        """Return a step of the circuit, with what was counted since the last one that told it."""
        calls, slow = self._untold() if verb in _TELLING else (0, 0)
        if admission is not None:
            generation, probe = admission.generation, admission.probe
        else:
            generation = self.reply.generation if verb == LOOK and self.reply is not None else -1
        if slow and not why:
            why = f"slower than {self.config.slow_seconds:g} s"
        age_us = -1 if probe else self._success_age_us()
        asked = Asked(verb, generation, probe, age_us, calls, slow, 0, owner(), why)
        return self.asking(asked)

    def _untold(self) -> tuple[int, int]:
        """Return the successes and slow calls to tell now; those that have left the window are forgotten."""
        calls, self.calls = self.calls, 0
        slow, self.slow = self.slow, 0
        lately = self.now_ns() - self._counted_ns < self._window_ns
        return (calls if lately else 0), slow

    def asking(self, asked: Asked) -> Step:
        """Return the operation for a question."""
        live = self.store.workers if isinstance(self.store, FailoverStore) else WORKERS_MAX
        return Step(self.name, self.rules, asked, self.known, 1 if self.exact else live)

    def ask(self, step: Step) -> Reply:
        """Take a step, blocking, and take note of the reply."""
        return self.glance(step, 0 if self.exact else self._stirred())

    def glance(self, step: Step, asked_ns: int) -> Reply:
        """Take a step without need to know it again soon, as for a page."""
        if self.exact:
            with self._lock:  # so that two replies are noted in the order in which they were made
                reply = self.store.apply(step)
                news = self._noted(reply, 0)
        else:
            reply = self.store.apply(step)
            with self._lock:
                news = self._noted(reply, asked_ns)
        self._tell(reply, news)
        return reply

    async def ask_async(self, step: Step) -> Reply:
        """Take a step, awaiting, and take note of the reply."""
        return await self.glance_async(step, 0 if self.exact else self._stirred())

    async def glance_async(self, step: Step, asked_ns: int) -> Reply:
        """Take a step without need to know it again soon, awaiting."""
        if self.exact:
            return self.glance(step, asked_ns)
        reply = await self.store.apply_async(step)
        with self._lock:
            news = self._noted(reply, asked_ns)
        self._tell(reply, news)
        return reply

    def due(self) -> Step | None:
        """Return a look for the keeper to take, if somebody used the breaker lately.

        Or if it is forced: what an operator said ends with a word, not with time, and not in an outage.
        """
        now_ns = self.now_ns()
        used, self.used = self.used, False
        if used:
            self._used_ns = now_ns
        counted, reply = self.calls, self.reply
        forced = reply is not None and reply.forced
        if now_ns - self._used_ns > IN_USE_NS and not counted and not forced:
            return None
        if self.good_until_ns - now_ns > _ENOUGH_NS and not counted:
            return None
        self._due_ns = now_ns
        return self.step(LOOK)

    def carried(self) -> Step | None:
        """Return a look at this worker's own circuit, if the shared one was open when last seen.

        So there is one, which is told to the others on return, even if nobody called during an outage.
        """
        reply = self.reply
        if reply is None or reply.phase != OPEN or reply.forced or self.now_ns() >= self._until_ns:
            return None
        return self.asking(Asked(LOOK, reply.generation, owner=owner()))

    def told(self, reply: Any) -> None:
        """Take note of what the keeper was answered."""
        with self._lock:
            news = self._noted(reply, self._due_ns)
        self._tell(reply, news)

    def known(self) -> Known:
        """Return the circuit as it is known, by this machine's clock, for a worker that goes on alone."""
        reply, now_us = self.reply, self.now_ns() // 1000
        if reply is None:
            return Known(EMPTY, Forced())
        ends_us = now_us + self.rules.memory_us
        circuit = Circuit(generation=reply.generation, calls_ends_us=ends_us)
        if reply.forced:
            return Known(circuit, Forced(reply.forced, reply.why))
        if reply.phase == CLOSED:
            return Known(circuit, Forced())
        circuit = circuit._replace(
            failures=reply.failures,
            failures_ends_us=now_us + FAILURES_US,
            open_until_us=self._until_ns // 1000 if reply.phase == OPEN else 0,
            tripped=True,
            opened_us=self._opened_ns // 1000 if reply.age_us >= 0 else now_us,
            why=reply.why,
            ramp_us=now_us if reply.phase == RAMP else 0,
            trip_ends_us=ends_us,
        )
        return Known(circuit, Forced())

    def good(self) -> Reply | None:
        """Return what is known, if it is good enough to decide by."""
        self.used = True
        reply = self.reply
        return reply if reply is not None and self.now_ns() < self.good_until_ns else None

    def since(self) -> float | None:
        """Return when the circuit opened, in Unix seconds, if that is known."""
        if self._opened_ns < 0:
            return None
        return time.time() - (self.now_ns() - self._opened_ns) / 1e9

    def open_until(self) -> float | None:
        """Return until when the circuit is open, in Unix seconds; unless it is held open by hand."""
        reply = self.reply
        left_ns = self._until_ns - self.now_ns()
        if reply is None or reply.phase != OPEN or reply.forced or left_ns <= 0:
            return None
        return time.time() + left_ns / 1e9

    def after_fork(self) -> None:
        """Free the lock that another thread of the parent may have held; the parent tells what it counted."""
        forks.renew(self._lock)
        self.calls = self.slow = 0

    def _success_age_us(self) -> int:
        """How long ago this worker last succeeded; where the view is exact, successes are written."""
        if self.succeeded_ns < 0:
            return -1
        age_us = max(0, self.now_ns() - self.succeeded_ns) // 1000
        return age_us if self.instant else age_us + ON_THE_WAY_US

    def _stirred(self) -> int:
        """Return the moment; if the breaker was idle, have the keeper look after it again."""
        now_ns = self.now_ns()
        idle = now_ns - self._used_ns > IN_USE_NS
        self.used = True
        if idle and isinstance(self.store, FailoverStore):
            self._used_ns = now_ns
            self.store.keeper.stir()
        return now_ns

    def _noted(self, reply: Reply, asked_ns: int) -> list[News]:
        """Take note; replies may overtake each other, unless a clock was set back."""
        behind_us = self._moment_us - reply.moment_us
        if not reply.alone and 0 < behind_us < SECOND_US:
            return []
        before, self.reply = self.reply, reply._replace(probe=0)  # that one is the asker's alone
        now_ns = self.now_ns()
        self._moment_us = 0 if reply.alone else reply.moment_us
        self._until_ns = now_ns + reply.left_us * 1000
        self._opened_ns = now_ns - reply.age_us * 1000 if reply.age_us >= 0 else -1
        ends_ns = _NEVER_NS if reply.forced or not reply.left_us else self._until_ns
        if reply.alone:
            self.good_until_ns = 0
        else:
            self.good_until_ns = ends_ns if self.exact else min(ends_ns, asked_ns + self._staleness_ns)
        clear = reply.phase == CLOSED and not reply.failures and not reply.alone and not self.timed
        self.standing = self._same_standing(reply) if clear else None
        return _news(before, reply)

    def _same_standing(self, reply: Reply) -> Admission:
        standing = self.standing
        if standing is not None and standing.generation == reply.generation:
            return standing
        return Admission(PHASES[CLOSED], reply.generation)

    def _tell(self, reply: Reply, news: list[News]) -> None:
        """Say what was learnt; what this very step changed is counted, once for the whole fleet."""
        for kind, text, severity in news:
            events.publish(kind, self.name, text, severity)
        if reply.change != UNCHANGED:
            count("breaker_transitions", self.name, to=_TO[reply.change])


def _news(before: Reply | None, reply: Reply) -> list[News]:
    was_forced, was = (before.forced, before.phase) if before is not None else (0, CLOSED)
    if reply.forced != was_forced:
        how = FORCES.get(reply.forced)
        text = f"forced {how} by hand until revoked: {reply.why}" if how else "no longer forced"
        return [News("breaker_forced", text.rstrip(": "), "warning")]
    reopened = before is not None and reply.phase == OPEN and before.generation != reply.generation
    if reply.phase == was and not reopened:
        return []
    if reply.phase == OPEN:
        text = f"open for {reply.left_us / SECOND_US:.1f} s: {reply.why}"
        return [News("breaker_opened", text.rstrip(": "), "warning")]
    if reply.phase == HALF_OPEN:
        return [News("breaker_half_open", f"half-open, to be tried again: {reply.why}".rstrip(": "), "info")]
    text = "closed" if reply.phase == CLOSED else f"closing, {100 * reply.share / WHOLE:.0f} % let through"
    return [News("breaker_closed", text, "info")]


def count(figure: str, name: str, **labels: str) -> None:
    """Count something, if anybody wants to know."""
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):  # a sink that fails must not stop a call
            sink.counter(figure, 1, breaker=name, **labels)


_views: WeakKeyDictionary[Store, WeakValueDictionary[str, View]] = WeakKeyDictionary()
_views_lock = Lock()

forks.renew_after_fork(_views_lock)


def view_of(store: Store, name: str, config: BreakerConfig) -> View:
    """Return this process's view of a circuit; two configurations under one name are a mistake."""
    with _views_lock:
        views = _views.setdefault(store, WeakValueDictionary())
        view = views.get(name)
        if view is None:
            view = views[name] = View(store, name, config)
    if view.config != config:
        raise ValueError(
            f"name {name!r} is in use on this state for a breaker with {view.config}, got {config}: "
            "choose another name"
        )
    return view
