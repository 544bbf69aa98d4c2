"""What each verb of a cache does, once, as a flow for both faces.

What the table tells at a glance, as a file does, needs no flow: one costs more than all else that is done for
such an answer. ``at_once`` and ``got_at_once`` give it, and the flows go on where those could not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta import events
from comporta.cache.answers import Loader, Merge, answer_of, takes
from comporta.cache.body import decoded
from comporta.cache.books import LATER, LOST, Books, Later, Lost
from comporta.cache.cached import Cached, Loaded
from comporta.cache.changes import Changes
from comporta.cache.chores import Chores
from comporta.cache.config import BY_PARAMS, CacheConfig, check_count, check_seconds
from comporta.cache.coverage import Coverage
from comporta.cache.figures import FRESH_HIT, MISS, STALE_HIT, Rates
from comporta.cache.flights import Flight, Landing, Launch
from comporta.cache.health import EXPIRED, FRESH
from comporta.cache.level import Level, digest_of
from comporta.cache.loading import AbandonedError, Job, Loads, owner
from comporta.cache.params import check_hash, check_user, hashed
from comporta.cache.serving import ASK_AGAIN_SECONDS, Serving
from comporta.clock import MONOTONIC, Clock
from comporta.errors import DatabaseError, DatabaseSchemaError
from comporta.flow import Flow
from comporta.stores.base import Store
from comporta.stores.urls import default_url, store_of

if TYPE_CHECKING:
    from comporta.cache.rows import Entry, Health
    from comporta.cache.table import CacheTable
    from comporta.database.base import Database

NAME = "cache"
"""The name of a cache that was given none; its keys are the hashes of the parameters and nothing else."""

USERS_MAX = 100_000
"""How many users' ids are known to be in order; then they are checked anew."""

DURATION_MS_MAX = 2**31 - 1
DUE_MAX = 1000
_TRIES = 10
_LOOK_SECONDS = 2.0
"""How often those who wait look whether there is still an event loop to wait for."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class Asking:
    """One cache: its parts, and its verbs."""

    def __init__(
        self,
        config: CacheConfig,
        name: str,
        *,
        database: str | Database | None,
        state: str | Store | None,
        clock: Clock,
        breaker_open: Callable[[], bool] | None,
        migrate: bool | None,
    ) -> None:
        if type(name) is not str or not _NAME.fullmatch(name):
            raise ValueError(f"name must be 1 to 100 of A-Z a-z 0-9 _ . -, got {name!r:.120}")
        if breaker_open is not None and not callable(breaker_open):
            raise TypeError(f"breaker_open must be a function, got {breaker_open!r:.50}")
        if not isinstance(database, str | None) and not hasattr(database, "dialect"):
            raise TypeError(f"database must be a URL or a database, got {database!r:.50}")
        from comporta.cache.table import CacheTable  # noqa: PLC0415 - only who has a cache needs a database
        from comporta.database.urls import open_database  # noqa: PLC0415 - see above

        self._ours = database is None or isinstance(database, str)
        self.database = open_database(database) if database is None or isinstance(database, str) else database
        state = default_url(distributed=True) if state is None else state
        store = store_of(state)
        self.config = config
        self.prefix = b"" if name == NAME else name.encode() + b":"
        self._by_params = config.scope == BY_PARAMS
        self.users: set[str] = set()
        self.rates = Rates()
        self.level = Level(config.level_entries, config.level_bytes, clock)
        self._table = CacheTable(self.database, None if clock is MONOTONIC else lambda: clock.now_ns() / 1e9)
        try:
            _migrated(self._table, name, migrate)
        except BaseException:
            self._let_go()
            raise
        self._books = Books(self._table, name, clock)
        self._changes = Changes(name, store, self.level)
        self._serving = Serving(config, self.level, self._changes, clock)
        self._chores = Chores(
            self._books,
            self.level,
            config.lease_seconds,
            self._serving.wall,
            self.rates,
            stale=config.stale,
        )
        self.loads = Loads(
            name, self._books, self._serving, changes=self._changes, chores=self._chores, clock=clock
        )
        self._clock = clock
        self._breaker_open = breaker_open

    def wanted(
        self,
        user_id: str,
        params_hash: str,
        text: bytes,
        loader: Loader,
        *,
        force: bool,
        soft_timeout: float | None,
        merge: Merge | None,
    ) -> Job:
        """Return what a caller asks for, if it is in order."""
        if not callable(loader):
            raise TypeError(f"loader must be a function, got {loader!r:.50}")
        if soft_timeout is not None:
            check_seconds("soft_timeout", soft_timeout)
        if merge is not None and not callable(merge):
            raise TypeError(f"merge must be a function, got {merge!r:.50}")
        job = self._job(user_id, params_hash, text, loader)
        job.forced, job.merge = force, merge
        job.soft_timeout = self.config.soft_timeout if soft_timeout is None else soft_timeout
        return job

    def at_once(self, job: Job) -> Cached | None:
        """Return what a glance shows, unless it should be fetched anew; nothing if that takes a flow."""
        if not self._sees(job) or job.found is None or job.forced:
            return None
        return job.found if self._counted(job.key, job.found, job.size, job.stamp) else None

    def note_saved(self, user_id: str, found: Cached, *, saved: bool) -> None:
        """Note whether the search of an answer is one that somebody keeps; only its owner can undo that."""
        if not isinstance(saved, bool):
            raise TypeError(f"saved must be true, false or None, got {saved!r:.50}")
        if saved or user_id == found.user_id:
            self._chores.save(found.user_id, found.params_hash, saved=saved)

    def fetching(self, job: Job) -> Flow[Cached]:
        """Return what is there if it is good, and see that it is fetched if it is not."""
        if not job.looked:
            yield from self._look(job)
        found, soft_timeout = job.found, job.soft_timeout
        if found is None or job.forced:
            self.rates.count(MISS)
            self._chores.start()
            return (yield from self._awaited(job, soft_timeout))
        if self._counted(job.key, found, job.size, job.stamp):
            return found
        if found.freshness == FRESH:
            self.rates.count(FRESH_HIT)
            soft_timeout = None
        else:
            self.rates.count(STALE_HIT)
        self._chores.note(found.user_id, found.params_hash)
        return (yield from self._refreshed(job, soft_timeout))

    def got_at_once(self, user_id: str, params_hash: str) -> Cached | Later | None:
        """Return what there is, however old; ``LATER`` if that takes ``getting``."""
        key = self._key(user_id, params_hash)
        stamp = self.level.stamp
        entry = self._books.glance(None if self._by_params else user_id, params_hash)
        return LATER if entry is LATER else self._got(key, entry, stamp)

    def getting(self, user_id: str, params_hash: str) -> Flow[Cached | None]:
        """Return what a glance did not show."""
        key = self._key(user_id, params_hash)
        stamp = self.level.stamp
        entry = yield from self._books.waiting(None if self._by_params else user_id, params_hash)
        return self._got(key, entry, stamp)

    def _got(self, key: str, entry: Entry | Lost | None, stamp: int) -> Cached | None:
        if entry is LOST:
            left = self.level.leftover(key)
            return None if left is None else self._serving.as_of_now(left)
        if entry is None or not entry.has_value:
            return None
        cached, size = self._serving.of_row(entry), len(entry.results)
        if not self._counted(key, cached, size, stamp):
            self._chores.note(cached.user_id, cached.params_hash)
        return cached

    def saving(
        self,
        user_id: str,
        params: Mapping[str, Any],
        results: Any,
        *,
        sources: Sequence[str],
        coverage: Coverage | Mapping[str, Any] | None,
        fetch_duration_ms: int | None,
        total_results: int | None,
    ) -> Flow[bool]:
        """Keep an answer as it is given: whoever saves by hand has decided."""
        params_hash, text = hashed(params, self.prefix)
        job = self._job(user_id, params_hash, text, answer_of)
        if fetch_duration_ms is not None:
            check_count("fetch_duration_ms", fetch_duration_ms, 0, DURATION_MS_MAX)
        answer = answer_of(Loaded(results, coverage, sources, total_results))
        kept = yield from self.loads.keeping(job, None, answer, fetch_duration_ms)
        self.level.drop_digest(digest_of(job.key))
        return bool(kept)

    def recording(self, user_id: str, params: Mapping[str, Any] | str) -> Flow[Health]:
        """Note a failure of somebody who fetched by themselves."""
        params_hash, text = self._named(params)
        job = self._job(user_id, params_hash, text or b"", answer_of)
        health = yield from self._books.failing(
            job.key, None, user_id, params_hash, text, now=self._serving.wall()
        )
        self.level.drop_digest(digest_of(job.key))
        yield from self._changes.telling(digest_of(job.key))
        return health

    def degraded(self, user_id: str, params: Mapping[str, Any] | str) -> Flow[bool]:
        """Whether a key is left alone for now."""
        job = self._job(user_id, self._named(params)[0], b"", answer_of)
        return (yield from self._books.degraded(job.key))

    def refreshing_due(self, loader: Loader, limit: int) -> Flow[int]:
        """Refresh what is due, as many at once as may be."""
        if not callable(loader):
            raise TypeError(f"loader must be a function, got {loader!r:.50}")
        told_who = takes(loader, "user_id")
        if not self._by_params and not told_who:  # one user's answer would become another's
            raise TypeError(f"loader must take user_id where users are kept apart, got {loader!r:.50}")
        check_count("limit", limit, 1, DUE_MAX)
        rows = yield from self._books.due(limit, self._serving.ahead_age)
        begun: list[Flight] = []
        for row in rows:
            job = self._job(
                row.user_id,
                row.params_hash,
                row.search_params,
                partial(loader, decoded(row.search_params), **({"user_id": row.user_id} if told_who else {})),
            )
            job.forced = row.wanted
            if not self._sees(job):
                yield from self._look(job)
            flight = yield from self._begun(job)
            if flight is None and begun:
                yield Landing(begun[-1])
                flight = yield from self._begun(job)
            if flight is not None:
                begun.append(flight)
        for flight in begun:
            yield Landing(flight)
        return len(begun)

    def figuring(self) -> Flow[dict[str, Any]]:
        """Return how the keys fare, how the fleet answered, and what this worker keeps."""
        figures = yield from self._books.figuring(self.config.fresh, self.config.stale)
        memory = {"entries": len(self.level), "loading": len(self.loads.flights)}
        return {**figures, "worker": owner(), "memory": memory}

    def close(self, seconds: float) -> None:
        """End the chores, and give the database back if it was opened here."""
        self._chores.close(seconds)
        self._let_go()

    def _let_go(self) -> None:
        if self._ours:
            self.database.close()

    def _job(self, user_id: str, params_hash: str, text: bytes, loader: Loader) -> Job:
        key = self._key(user_id, params_hash)
        return Job(key, user_id, params_hash, text, loader, self._clock.now_ns())

    def _named(self, params: Mapping[str, Any] | str) -> tuple[str, bytes | None]:
        return (check_hash(params), None) if isinstance(params, str) else hashed(params, self.prefix)

    def _key(self, user_id: str, params_hash: str) -> str:
        """Return what is fetched as one, for a user whose id is in order."""
        if type(user_id) is not str or user_id not in self.users:
            check_user(user_id)
            if len(self.users) >= USERS_MAX:
                self.users.clear()
            self.users.add(user_id)
        return params_hash if self._by_params else f"{user_id}:{params_hash}"

    def _counted(self, key: str, found: Cached, size: int, stamp: int) -> bool:
        """Count an access to what need not be fetched anew, and have those that follow answered from memory.

        False if it is due; then nothing was done.
        """
        until_ns = self._serving.undisturbed_until_ns(found)
        if not until_ns:
            return False
        if self.level.put(key, found, until_ns, size + found.params_bytes, stamp, served=True):
            self._changes.listen()
            self._chores.start()
        else:
            self.rates.count(FRESH_HIT)
            self._chores.note(found.user_id, found.params_hash)
        return True

    def _sees(self, job: Job) -> bool:
        """Find what there is, if a glance shows it."""
        job.stamp = self.level.stamp
        entry = self._books.glance(None if self._by_params else job.user_id, job.params_hash)
        if entry is LATER:
            return False
        self._saw(job, entry)
        return True

    def _look(self, job: Job) -> Flow[None]:
        """Find what a glance did not show."""
        job.stamp = self.level.stamp
        entry = yield from self._books.waiting(None if self._by_params else job.user_id, job.params_hash)
        self._saw(job, entry)

    def _saw(self, job: Job, entry: Entry | Lost | None) -> None:
        """Note what there is and can still be served; without a database, what this process has left."""
        job.looked = True
        found = None
        if entry is LOST:
            left = self.level.leftover(job.key)
            found = None if left is None else self._serving.as_of_now(left)
        elif entry is not None and entry.has_value:
            found, job.size = self._serving.of_row(entry), len(entry.results)
        job.found = None if found is None or found.freshness == EXPIRED else found

    def _refreshed(self, job: Job, soft_timeout: float | None) -> Flow[Cached]:
        """Serve what there is, and have it fetched anew; wait for that a little if so asked."""
        found = job.found
        assert found is not None  # noqa: S101 - see fetching
        pause = found.next_retry
        if pause or not soft_timeout:  # else the next caller waits for something fresh as well
            self._serving.shelve(job.key, found, job.size, job.stamp, pause or ASK_AGAIN_SECONDS)
        flight = None if pause else (yield from self._begun(job))
        if flight is not None and soft_timeout:
            yield Landing(flight, soft_timeout)
            if flight.landed and isinstance(flight.result, Cached):
                return flight.result
        return job.found or found

    def _begun(self, job: Job) -> Flow[Flight | None]:
        """Begin a refresh, or find it under way; nothing if there are too many, or the source is shut."""
        if self._breaker_open is not None and self._breaker_open():
            return None
        flight, mine = self.loads.flights.join(job.key)
        if flight is None or not mine:
            return flight
        if not self.loads.admit(self.config.refreshes_max):
            self.loads.flights.leave(job.key, flight)
            flight.land(error=AbandonedError())
            return None
        job.background = True
        yield from self._launched(job, flight)
        return flight

    def _launched(self, job: Job, flight: Flight) -> Flow[None]:
        flight.give_up = partial(self.loads.gave_up, job, flight)
        try:
            yield Launch(self.loads.flights, self.loads.load(job, flight), flight)
        except BaseException:  # no thread to be had: nobody will land it
            flight.give_up()
            raise

    def _awaited(self, job: Job, soft_timeout: float | None) -> Flow[Cached]:
        """Wait for a fetch, one's own or another's."""
        for _ in range(_TRIES):
            flight, mine = self.loads.flights.join(job.key)
            if flight is None:
                raise self.loads.refused("too much is being fetched", job, 1.0)
            if mine:
                job.background = False
                yield from self._launched(job, flight)
            patience = soft_timeout if job.found is not None else None
            landed: bool = yield Landing(flight, _LOOK_SECONDS if patience is None else patience)
            while not landed and patience is None:
                self.loads.flights.bury(job.key)
                landed = yield Landing(flight, _LOOK_SECONDS)
            result: Cached | None = flight.result if landed else job.found
            if result is not None:
                return result
            if flight.error is not None and not isinstance(flight.error, AbandonedError):
                if job.found is not None:
                    return job.found
                raise flight.error
        raise self.loads.refused("whoever fetches it is ended again and again", job, 1.0)


def _migrated(table: CacheTable, name: str, migrate: bool | None) -> None:
    """Bring the tables up to date, or see that they are; a database out of reach may be there later."""
    if migrate is None:
        migrate = table.database.dialect == "sqlite"
    try:
        table.migrate() if migrate else table.check()
    except DatabaseSchemaError:
        raise
    except DatabaseError as error:
        events.publish("cache_unreadable", name, f"could not look at the tables: {error}", "error")
