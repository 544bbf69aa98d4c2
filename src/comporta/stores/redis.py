"""State shared by a fleet through Redis or Valkey: ``redis://``, ``rediss://``, ``valkey://``, ``unix://``.

Every operation is one script call. A blocking caller makes one round trip on a connection of its own
(``pool.py``); awaiting callers of one tick of an event loop go out together (``redis_async.py``).
Connections, TLS and authentication are redis-py's; what is done with them is here, because redis-py's own
command path costs several times the server's work. No call that may have been carried out is repeated, and
every call is answered, or ends in a ``StateError``, within its deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from comporta import forks
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import Operation
from comporta.stores.connecting import address_of
from comporta.stores.effects import Apply
from comporta.stores.listing import ListRecords, Page
from comporta.stores.naming import named
from comporta.stores.routes import Route, Straight, Watched
from comporta.stores.wire import WORKERS_KEY, Call, calls_for, pack

if TYPE_CHECKING:
    from comporta.stores.pool import Pool
    from comporta.stores.redis_async import Lines

R = TypeVar("R")

TIMEOUT_SECONDS = 0.05
CONNECT_TIMEOUT_SECONDS = 1.0

# Would change a worker that cannot be, so it changes nothing; but who may not write, or has no room, says so.
_PROBE = """
local found = redis.pcall('ZADD', KEYS[1], 'XX', 0, '')
if type(found) == 'table' and found.err and not string.find(found.err, 'WRONGTYPE') then return found end
return 1
"""


_left_to_parents: list[Lines] = []
"""Lines of a parent's event loops. Let go of in a child, they would be taken out of the parent's loop, too:
the two share what it waits on."""


class RedisStore:
    """A store for a fleet.

    A call takes ``timeout`` seconds at the most. A connection may take ``connect_timeout`` to be made, but is
    made behind the callers' backs: they are told after ``timeout`` that nothing was sent.

    ``heard`` is told how many workers live, with every decision. ``clock`` is for tests: with it the scripts
    are told the time, instead of asking the server.
    """

    tagged = False

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        route: Route | None = None,
    ) -> None:
        for name, seconds in (("timeout", timeout), ("connect_timeout", connect_timeout)):
            if not 0.001 <= seconds <= 60:
                raise ValueError(f"{name} must be 0.001 to 60 seconds, got {seconds}")
        try:
            from redis import exceptions  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise StateUnavailableError(
                "redis:// needs the package redis: pip install 'comporta[redis]'"
            ) from error
        self.url = url
        self.address = address_of(url)
        self.timeout = timeout
        self.connect_timeout = connect_timeout
        self.clock = clock or MONOTONIC
        self.workers_heard = 0
        self.heard: Callable[[int], None] = self._hear
        self._told_time = clock is not None
        self.route = route or (Watched(url) if _names_sentinels(url) else Straight(url))
        self._forgotten = exceptions.NoScriptError
        self._pool = self._new_pool()
        self._lines: Lines | None = None
        self._making = Lock()
        forks.register(self)

    def now_us(self) -> int:
        """Return the time to tell a script; 0 lets it ask the server."""
        return self.clock.now_ns() // 1000 if self._told_time else 0

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation in one round trip."""
        return self.apply_since(operation, MONOTONIC.now_ns())

    def apply_since(self, operation: Operation[R], began_ns: int) -> R:
        """Carry out an operation for a caller that waits since ``began_ns``."""
        [reply] = self._called(Call(operation.script, [operation], self.tagged), began_ns)
        if isinstance(reply, StateError):
            raise reply
        result: R = reply
        return result

    def apply_all(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out some operations, many in one call; returns for each its reply, or its key's error."""
        replies: list[Any] = []
        for call in calls_for(operations):
            replies += self._called(call, MONOTONIC.now_ns())
        return replies

    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation together with the others asked for in this tick of the loop."""
        return self.lines().apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, a page at a time."""
        return run(self._listed(space))

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return await run_async(self._listed(space))

    def _listed(self, space: str) -> Flow[dict[str, bytes]]:
        found: dict[str, bytes] = {}
        cursor = b"0"
        while True:
            page: Page = yield Apply(self, ListRecords(space, cursor))
            found.update(page.records)
            if page.cursor == b"0":
                return found
            cursor = page.cursor

    def reach(self) -> None:
        """Make sure that the server can be reached and used, blocking for ``connect_timeout`` at the most.

        Then there is a connection for the next caller. Raises the ``StateError`` that says why not.
        """
        try:
            self._pool.reach()
            self._pool.exchanged(self.probe(), MONOTONIC.now_ns(), int)
        except StateError:
            raise
        except Exception as error:
            raise named(error, self.address) from error

    def probe(self) -> bytes:
        """Return a command that only a server which can be used answers, with a number."""
        return pack(("EVAL", _PROBE, 1, WORKERS_KEY))

    def close(self) -> None:
        """Close the connections of blocking callers."""
        self._pool.close()

    async def aclose(self) -> None:
        """Close all connections, those of the running event loop included."""
        if self._lines is not None:
            await self._lines.aclose()
        self.close()

    def lines(self) -> Lines:
        """Return the awaiting side, made when first asked for."""
        lines = self._lines
        if lines is None:
            from comporta.stores.redis_async import Lines  # noqa: PLC0415 - pulls in asyncio

            with self._making:  # several threads may come here at once, each with a loop of its own
                lines = self._lines = self._lines or Lines(self)
        return lines

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        self._pool = self._new_pool()
        if self._lines is not None:
            _left_to_parents.append(self._lines)
        self._lines = None
        forks.renew(self._making)

    def _new_pool(self) -> Pool:
        from comporta.stores.pool import Pool  # noqa: PLC0415 - an extra

        return Pool(self.route.connect, self.address, self.timeout, self.connect_timeout)

    def _hear(self, workers: int) -> None:
        self.workers_heard = workers

    def explained(self, error: Exception, call: Call) -> StateError:
        """Return what an error that came up during a call is called here."""
        return named(error, self.address, call.names())

    def _called(self, call: Call, began_ns: int) -> list[Any]:
        """Make one script call; one that the server has forgotten is sent again with its text."""
        now_us = self.now_us()
        packed = call.packed(now_us)
        asking = call.script.asking

        def read(raw: Any) -> list[Any]:
            return call.replies(raw, self.heard)

        try:
            try:
                return self._pool.exchanged(packed, began_ns, read, asking=asking)
            except self._forgotten:  # so it was not carried out, and the server is well: a new beginning
                packed = call.packed(now_us, with_text=True)
                return self._pool.exchanged(packed, MONOTONIC.now_ns(), read, asking=asking)
        except StateError:
            raise
        except Exception as error:
            raise self.explained(error, call) from error


def _names_sentinels(url: str) -> bool:
    return url.partition("://")[0].endswith("+sentinel")
