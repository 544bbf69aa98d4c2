"""State shared by a fleet through Redis or Valkey: ``redis://``, ``rediss://``, ``valkey://``, ``unix://``.

Every operation is one script call. A blocking caller makes one round trip on a connection of its own
(``pool.py``); the operations of one tick of an event loop are sent together (``async_batches.py``). redis-py
makes the connections, with TLS and authentication. Commands do not go through redis-py, because its command
path takes several times as long as the server. No call that may have taken effect is repeated, and every call
is answered, or raises a ``StateError``, within its deadline.

``failover/`` defines what happens during an outage.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from comporta import fork_safety
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import KEY_ERRORS, Operation, Store
from comporta.stores.effects import Apply
from comporta.stores.failover.worker_registry import REGISTRY_KEY
from comporta.stores.redis.connection import display_address
from comporta.stores.redis.deadline import TIMEOUT_MAX_FACTOR, AdaptiveDeadline
from comporta.stores.redis.errors import translate_error
from comporta.stores.redis.protocol import ScriptCall, pack, script_calls
from comporta.stores.redis.scan import RecordPage, ScanRecords
from comporta.stores.redis.sentinel import DirectRoute, Route, SentinelRoute
from comporta.validators import require_number

if TYPE_CHECKING:
    from comporta.stores.redis.async_batches import Pipelines
    from comporta.stores.redis.pool import BlockingPool

R = TypeVar("R")

TIMEOUT_SECONDS = 0.05
CONNECT_TIMEOUT_SECONDS = 1.0

# Updates a worker that cannot exist, so it changes nothing. A server that is read-only or full refuses it.
_PROBE_SCRIPT = """
local reply = redis.pcall('ZADD', KEYS[1], 'XX', 0, '')
if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE') then return reply end
return 1
"""


_parent_pipelines: list[Pipelines] = []
"""Pipelines of a parent's event loops. If a child closed them, it would also remove their sockets from the
parent's event loop, because both processes share its epoll descriptor."""


class RedisStore(Store):
    """A store for a fleet, on one Redis or Valkey server.

    A call takes at most ``timeout`` seconds, or three times the server's usual round trip if that is longer,
    up to ``timeout_max`` (four times ``timeout`` unless given). Connecting may take up to
    ``connect_timeout``, but happens in the background: after ``timeout`` the caller gets an error stating
    that nothing was sent.

    ``clock`` is for tests: scripts then use its time instead of the server's.
    """

    batch_size = 256
    keeps_changes = True
    uses_hash_tags = False

    def __init__(
        self,
        url: str,
        timeout: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
        connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
        route: Route | None = None,
        *,
        timeout_max: float | None = None,
    ) -> None:
        require_number("timeout", timeout, 0.001, 60, unit="seconds")
        require_number("connect_timeout", connect_timeout, 0.001, 60, unit="seconds")
        if timeout_max is None:
            timeout_max = min(60.0, TIMEOUT_MAX_FACTOR * timeout)
        if not timeout <= timeout_max <= 60:
            raise ValueError(f"timeout_max must be timeout ({timeout}) to 60 seconds, got {timeout_max}")
        try:
            from redis import exceptions  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise StateUnavailableError(
                "redis:// needs the package redis: pip install 'comporta[redis]'"
            ) from error
        self.url = url
        self.address = display_address(url)
        self.timeout = timeout
        self.timeout_max = timeout_max
        self.deadline = AdaptiveDeadline(timeout, timeout_max)
        self.connect_timeout = self.connect_seconds_max = connect_timeout
        self.clock = clock or MONOTONIC
        self._sends_time = clock is not None
        self.route = route or (SentinelRoute(url) if _is_sentinel_url(url) else DirectRoute(url))
        self._script_missing_error = exceptions.NoScriptError
        self._reply_error = exceptions.ResponseError
        self._pool = self._new_pool()
        self._pipelines: Pipelines | None = None
        self._creation_lock = Lock()
        fork_safety.register(self)

    def now_us(self) -> int:
        """Return the time to pass to a script; 0 makes it use the server's clock."""
        return self.clock.now_ns() // 1000 if self._sends_time else 0

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation in one round trip."""
        return self.apply_since(operation, MONOTONIC.now_ns())

    def apply_since(self, operation: Operation[R], began_ns: int) -> R:
        """Carry out an operation for a caller that has been waiting since ``began_ns``."""
        [reply] = self._call(ScriptCall(operation.script, [operation], self.uses_hash_tags), began_ns)
        if isinstance(reply, StateError):
            raise reply
        result: R = reply
        return result

    def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
        """Carry out several operations in one round trip for each 256 of them.

        Returns the reply to each operation, or the error of its key.
        """
        replies: list[Any] = []
        for start in range(0, len(operations), self.batch_size):
            calls = script_calls(operations[start : start + self.batch_size])
            replies += self._call(calls[0], MONOTONIC.now_ns()) if len(calls) == 1 else self._call_many(calls)
        return replies

    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation, together with the others of this tick of the event loop."""
        return self.pipelines().apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, a page at a time."""
        return run(self._entries_flow(space))

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns, without blocking the event loop."""
        return await run_async(self._entries_flow(space))

    def _entries_flow(self, space: str) -> Flow[dict[str, bytes]]:
        records: dict[str, bytes] = {}
        cursor = b"0"
        while True:
            page: RecordPage = yield Apply(self, ScanRecords(space, cursor))
            records.update(page.records)
            if page.cursor == b"0":
                return records
            cursor = page.cursor

    def probe(self) -> None:
        """Check that the server can be reached and written, within ``connect_timeout``.

        Raises the ``StateError`` that says why not. Keeps a connection for the next caller.
        """
        try:
            self._pool.ensure_connection()
            self._pool.exchange(self.probe_command(), MONOTONIC.now_ns(), int)
        except StateError:
            raise
        except Exception as error:
            raise translate_error(error, self.address) from error

    def probe_command(self) -> bytes:
        """Return a command that a usable server answers with a number."""
        return pack(("EVAL", _PROBE_SCRIPT, 1, REGISTRY_KEY))

    def close(self) -> None:
        """Close the connections of blocking callers; one that is opened later is closed after its use."""
        self._pool.retire()

    def close_connections(self) -> None:
        """Close the connections of blocking callers; they reopen when needed."""
        self._pool.close()

    async def aclose(self) -> None:
        """Close all connections, including those of the running event loop."""
        if self._pipelines is not None:
            await self._pipelines.aclose()
        self.close_connections()

    def pipelines(self) -> Pipelines:
        """Return the pipelines of async callers, created on first use."""
        pipelines = self._pipelines
        if pipelines is None:
            from comporta.stores.redis.async_batches import Pipelines  # noqa: PLC0415 - pulls in asyncio

            with self._creation_lock:  # several threads with event loops may come here at the same time
                pipelines = self._pipelines = self._pipelines or Pipelines(self)
        return pipelines

    def after_fork(self) -> None:
        """Use new connections in a forked child; the inherited ones are the parent's."""
        self._pool = self._new_pool()
        if self._pipelines is not None:
            _parent_pipelines.append(self._pipelines)
        self._pipelines = None
        fork_safety.reinit_lock(self._creation_lock)

    def _new_pool(self) -> BlockingPool:
        from comporta.stores.redis.pool import BlockingPool  # noqa: PLC0415 - an extra

        return BlockingPool(self.route.connect, self.address, self.deadline, self.connect_timeout)

    def translate_call_error(self, error: Exception, call: ScriptCall) -> StateError:
        """Return the ``StateError`` for an error during a call."""
        return translate_error(error, self.address, call.key_summary())

    def _call(self, call: ScriptCall, began_ns: int) -> list[Any]:
        """Make one script call; if the server does not know the script, send it again with its text."""
        now_us = self.now_us()
        packed = call.command_bytes(now_us)
        asking = call.script.asking
        parse = call.parse_replies
        try:
            try:
                return self._pool.exchange(packed, began_ns, parse, asking=asking)
            except self._script_missing_error:  # it had no effect, and the server answers: a new deadline
                packed = call.command_bytes(now_us, with_text=True)
                return self._pool.exchange(packed, MONOTONIC.now_ns(), parse, asking=asking)
        except StateError:
            raise
        except Exception as error:
            raise self.translate_call_error(error, call) from error

    def _call_many(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make several script calls in one round trip; repeat the calls whose script was missing."""
        now_us = self.now_us()
        try:
            raws = self._pool.exchange_many(
                [call.command_bytes(now_us) for call in calls], MONOTONIC.now_ns()
            )
        except StateError:
            raise
        except Exception as error:
            raise self.translate_call_error(error, calls[0]) from error
        replies: list[Any] = []
        for call, raw in zip(calls, raws, strict=True):
            replies += self._replies_to(call, raw)
        return replies

    def _replies_to(self, call: ScriptCall, raw: Any) -> list[Any]:
        try:
            if isinstance(raw, self._script_missing_error):
                return self._call(call, MONOTONIC.now_ns())
            if isinstance(raw, Exception):
                raise self.translate_call_error(raw, call)
        except KEY_ERRORS as error:
            return [error] * len(call.operations)
        return call.parse_replies(raw)


def _is_sentinel_url(url: str) -> bool:
    return url.partition("://")[0].endswith("+sentinel")
