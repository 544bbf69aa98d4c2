"""The story of one fetch, as a flow: ask for the turn, load, keep what came of it, tell the others.

The turn is the fleet's: whoever does not get it learns from the table what became of the one who did. A turn
ends by its own deadline when its holder dies, and carries a number, so that a holder who comes back late
cannot write over what its successor wrote.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta import events, forks
from comporta.cache.answers import Answer, Loader, Merge, answer_of, bound, joined, missing_of
from comporta.cache.body import VALUE_BYTES_MAX, encoded
from comporta.cache.books import LOST, Books, left_of
from comporta.cache.cached import Cached
from comporta.cache.changes import Changes
from comporta.cache.chores import Chores
from comporta.cache.config import BY_PARAMS
from comporta.cache.flights import Call, Flight, Flights
from comporta.cache.health import EXPIRED, is_better
from comporta.cache.level import digest_of
from comporta.cache.rows import Entry
from comporta.cache.serving import Serving
from comporta.chance import uniform
from comporta.clock import Clock
from comporta.errors import CacheUnavailableError, RefusedError
from comporta.flow import Flow
from comporta.stores.effects import Sleep
from comporta.threads import clear_up

if TYPE_CHECKING:
    from comporta.cache.rows import Claim

_POLL_SECONDS = (0.05, 0.15)
"""Those who wait for another worker look again after some time between these."""

_ON_THE_WAY_SECONDS = 0.1
_WHY_CHARS_MAX = 200


class AbandonedError(Exception):
    """A load was ended from outside; somebody else has to start anew."""


@dataclass(slots=True)
class Job:
    """What is to be loaded, for whom, and what there is of it already."""

    key: str
    user_id: str
    params_hash: str
    text: bytes
    loader: Loader
    began_ns: int
    found: Cached | None = None
    size: int = 0
    stamp: int = 0
    looked: bool = False
    soft_timeout: float | None = None
    forced: bool = False
    background: bool = False
    merge: Merge | None = None


class Turn(NamedTuple):
    """The right to fetch: its number, if the table gave it, and the database's time when it did."""

    token: int | None
    now: float
    at_ns: int


class Loads:
    """Carries out jobs, each once."""

    def __init__(
        self, name: str, books: Books, serving: Serving, *, changes: Changes, chores: Chores, clock: Clock
    ) -> None:
        self.flights = Flights(serving.config.lease_seconds)
        self._refreshing = 0
        self._lock = Lock()
        forks.register(self)
        self._books = books
        self._serving = serving
        self._config = serving.config
        self._changes = changes
        self._chores = chores
        self._clock = clock
        self._name = name

    def load(self, job: Job, flight: Flight) -> Flow[None]:
        """Carry out a job, and tell all who wait for it, whatever happens."""
        result: Cached | None = None
        error: Exception | None = None
        try:
            result = yield from self._loaded(job, flight)
        except Exception as failed:
            error = failed
        except BaseException:
            error = AbandonedError()
            raise
        finally:
            clear_up(self._ended, job, flight, result, error)

    def admit(self, refreshes_max: int) -> bool:
        """Whether there is room for one more refresh; then it counts."""
        with self._lock:
            if self._refreshing >= refreshes_max:
                return False
            self._refreshing += 1
            return True

    def gave_up(self, job: Job, flight: Flight) -> None:
        """A load could not even begin."""
        self._ended(job, flight, None, AbandonedError())

    def _ended(self, job: Job, flight: Flight, result: Cached | None, error: Exception | None) -> None:
        self.flights.leave(job.key, flight)
        if flight.land(result, error) and job.background:
            with self._lock:
                self._refreshing -= 1

    def after_fork(self) -> None:
        """Leave what is under way to the parent."""
        forks.renew(self._lock)
        self._refreshing = 0

    def refused(self, why: str, job: Job, seconds: float) -> CacheUnavailableError:
        """Return the error for somebody for whom there is nothing."""
        text = f"{self._name}: nothing to serve for {job.params_hash[:16]}: {why}"
        return CacheUnavailableError(text, self._name, seconds)

    def _loaded(self, job: Job, flight: Flight) -> Flow[Cached | None]:
        turn, found = yield from self._turn(job)
        if turn is None:
            return found
        self._chores.hold(job.key, turn.token, flight.runs)
        try:
            return (yield from self._fetched(job, turn))
        finally:
            clear_up(self._chores.drop, job.key, turn.token)

    def _turn(self, job: Job) -> Flow[tuple[Turn | None, Cached | None]]:
        """Ask for the turn until it is given, or somebody else's brought a result."""
        patience_ns = job.began_ns + round(2e9 * self._config.refresh_timeout)
        looked = waited = False
        while True:
            claim = yield from self._claimed(job, forced=job.forced and not waited, looked=looked)
            if claim is None:
                self._check_alone(job)
                return Turn(None, self._serving.wall(), self._clock.now_ns()), None
            if claim.granted:
                return Turn(claim.token, claim.now, self._clock.now_ns()), None
            left = 0.0 if claim.lease_until is None else claim.lease_until - claim.now
            if left > 0:
                if job.background:
                    return None, None
                if self._clock.now_ns() >= patience_ns:
                    raise self.refused("another worker has been fetching it for too long", job, left)
                yield from self._rested(job, left, patience_ns)
                waited = True  # what another brings meanwhile is as good as what was asked for
                continue
            if claim.degraded_until is not None and claim.degraded_until > claim.now:
                raise self._left_alone(job, claim.fail_streak, claim.degraded_until - claim.now)
            found = yield from self._reread(job)
            if found is not None or job.background:
                return None, found
            looked = True

    def _rested(self, job: Job, left: float, patience_ns: int) -> Flow[None]:
        """Wait until another's turn seems to be over."""
        while left > 0 and self._clock.now_ns() < patience_ns:
            yield Sleep(self._clock, min(left + 0.001, uniform(*_POLL_SECONDS)))
            left = yield from self._books.leased(job.key)

    def _claimed(self, job: Job, *, forced: bool, looked: bool) -> Flow[Claim | None]:
        """Ask once; a success since the caller began to look is as good as the turn, if it can be read."""
        recent = (self._clock.now_ns() - job.began_ns) / 1e9 + _ON_THE_WAY_SECONDS
        if job.background:
            recent = self._config.refresh_pause
        claim = yield from self._books.claiming(
            job.key,
            owner(),
            self._config.lease_seconds,
            forced=forced,
            not_within=0.0 if looked else recent,
        )
        return claim

    def _check_alone(self, job: Job) -> None:
        left = self._books.alone.left(job.key)
        if left > 0 and not job.forced:
            raise self._left_alone(job, 0, left)

    def _left_alone(self, job: Job, streak: int, seconds: float) -> CacheUnavailableError:
        """Say that the source failed too recently; what there is is marked with that."""
        self._mark(job, streak, seconds)
        return self.refused(f"the source failed and is tried again in {seconds:.0f} s", job, seconds)

    def _mark(self, job: Job, streak: int, seconds: float) -> None:
        if job.found is not None:
            job.found = self._serving.after_failure(job.found, streak, seconds)
            self._serving.shelve(job.key, job.found, job.size, self._serving.level.stamp, seconds)

    def _reread(self, job: Job) -> Flow[Cached | None]:
        """Return what somebody else fetched meanwhile."""
        stamp = self._serving.level.stamp
        shared = self._config.scope == BY_PARAMS
        entry = yield from self._books.reading(None if shared else job.user_id, job.params_hash)
        if entry is LOST or entry is None or not entry.has_value:
            return None
        cached = self._serving.of_row(entry)
        if cached.freshness == EXPIRED:
            return None
        self._serving.shelve(job.key, cached, len(entry.results), stamp)
        return cached

    def _fetched(self, job: Job, turn: Turn) -> Flow[Cached | None]:
        began_ns = self._clock.now_ns()
        found = job.found
        missing = missing_of(found, job.loader)
        given = yield from self._called(job, turn, missing)
        try:
            whole = joined(found, missing, given, job.merge) if missing and found is not None else given
            answer = answer_of(whole)
        except Exception as error:
            if found is None:  # the caller hears of it: that says nothing about the source
                yield from self._books.releasing(job.key, turn.token)
            else:  # nobody would, and the source would be asked again every second
                yield from self._failed(job, turn, error)
            raise
        usable = found is not None and self._serving.as_of_now(found).freshness != EXPIRED
        if not is_better(answer.coverage, found.coverage if found else None, usable=usable):
            yield from self._failed(job, turn, f"only {answer.coverage}, less than there is")
            return job.found
        age = found.age if missing and found is not None else 0.0  # that of its oldest part
        duration_ms = (self._clock.now_ns() - began_ns) // 1_000_000
        return (yield from self._kept(job, turn, answer, duration_ms, age))

    def _called(self, job: Job, turn: Turn, missing: tuple[str, ...]) -> Flow[Any]:
        """Call the loader; what is not the source's fault gives the turn back and is not held against it."""
        try:
            given = yield Call(bound(job.loader, missing), self._config.refresh_timeout)
        except GeneratorExit:
            raise
        except RefusedError:
            yield from self._books.releasing(job.key, turn.token)
            raise
        except Exception as error:
            yield from self._failed(job, turn, error)
            raise
        except BaseException:
            yield from self._books.releasing(job.key, turn.token)
            raise
        return given

    def _failed(self, job: Job, turn: Turn, why: Exception | str) -> Flow[None]:
        health = yield from self._books.failing(
            job.key, turn.token, job.user_id, job.params_hash, job.text, now=self._serving.wall()
        )
        streak, seconds = health.fail_streak, left_of(health)
        self._mark(job, streak, seconds)
        often = "once" if streak == 1 else f"{streak} times"
        text = f"{job.params_hash[:16]} failed {often}, left alone for {seconds:.0f} s: {_told(why)}"
        events.publish("cache_fetch_failed", self._name, text, "warning")

    def _kept(
        self, job: Job, turn: Turn, answer: Answer, duration_ms: int, age: float
    ) -> Flow[Cached | None]:
        now = turn.now + (self._clock.now_ns() - turn.at_ns) / 1e9
        cached = self._serving.of_load(answer, _row(job, answer, duration_ms, now, age), age)
        stamp = self._serving.level.stamp  # what another writes from now on is newer
        kept = yield from self.keeping(job, turn.token, answer, duration_ms, age)
        if kept is False:
            return (yield from self._reread(job)) or cached
        self._serving.shelve(job.key, cached, len(answer.body), stamp)
        return cached

    def keeping(
        self, job: Job, token: int | None, answer: Answer, duration_ms: int | None, age: float = 0.0
    ) -> Flow[bool | None]:
        """Write a row and tell the others; false if a later turn has begun, nothing if it could not."""
        if len(answer.body) > VALUE_BYTES_MAX:
            text = f"{job.params_hash[:16]} has {len(answer.body)} bytes, at most {VALUE_BYTES_MAX} are kept"
            events.publish("cache_not_kept", self._name, text, "error")
            yield from self._books.releasing(job.key, token)
            return None
        coverage = None if answer.coverage is None else encoded(answer.coverage.as_dict())
        kept = yield from self._books.succeeding(
            job.key,
            token,
            job.user_id,
            job.params_hash,
            job.text,
            answer.body,
            answer.total_results,
            list(answer.sources),
            coverage,
            duration_ms,
            age,
        )
        if kept:
            yield from self._changes.telling(digest_of(job.key))
            if job.found is None:
                yield from self._books.evicting(job.user_id, self._config.entries_per_user, job.params_hash)
        return kept


def _row(job: Job, answer: Answer, duration_ms: int, now: float, age: float) -> Entry:
    """Return a row as it is written, but for the body, which nobody reads here."""
    return Entry(
        user_id=job.user_id,
        params_hash=job.params_hash,
        search_params=job.text,
        results=b"",
        total_results=answer.total_results,
        sources=answer.sources,
        fetched_at=now - age,
        created_at=now,
        last_success_at=now,
        last_attempt_at=now,
        fail_streak=0,
        degraded_until=None,
        coverage=None,
        fetch_duration_ms=duration_ms,
        has_value=True,
        priority=None,
        access_count=0,
        last_accessed_at=None,
        now=now,
    )


def _told(why: Exception | str) -> str:
    """Return a failure in a few printable words."""
    text = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return "".join(letter if letter.isprintable() else " " for letter in text[:_WHY_CHARS_MAX])


@cache
def _host() -> str:
    return os.uname().nodename[:64] or "localhost"


def owner() -> str:
    """Return who fetches, for those who look at the table."""
    return f"{_host()}:{os.getpid()}"
