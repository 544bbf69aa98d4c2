"""The exceptions that comporta raises, in one tree.

::

    Exception
    ├── ValueError, TypeError             invalid argument: names it, the allowed range and the value
    └── ComportaError
        ├── RefusedError                  the call was not made: carries ``retry_after``
        │   ├── CacheUnavailableError     no cached value, and the source is in its backoff
        │   │   └── CachePendingError     no cached value yet: its load has not ended, or not begun
        │   ├── CircuitOpenError          the circuit breaker is open
        │   └── LimitReachedError         no capacity within the caller's timeout
        ├── StateError                    the store could not apply an operation
        │   ├── StateUnavailableError     the store is unreachable, or its data is unusable
        │   │   ├── StateAuthError        the server rejects the credentials
        │   │   │   └── StatePermissionError  the user lacks a permission
        │   │   └── StateMovingError      a cluster is moving the key from one node to another
        │   ├── StateTimeoutError         no reply before the deadline
        │   ├── StateFullError            no room for a new key
        │   └── StateTypeError            the key holds data that comporta did not write
        ├── ChannelClosedError            the channel is closed
        ├── PipelineError                 a pipeline run cannot continue
        │   ├── SourceError               the input cannot be read: file, line and reason
        │   └── CheckpointError           the checkpoint cannot be read, written or applied
        ├── SinkError                     rows could not be written: which sink, where, why
        │   ├── SinkUnavailableError      the sink cannot be opened, reached or written
        │   │   └── SinkBusyError         the sink asks for a later retry: carries ``retry_after``
        │   ├── SinkAuthError             the sink rejects the credentials or lacks a permission
        │   ├── SinkNotFoundError         the target does not exist
        │   ├── SinkFullError             no room: a full disk, the last row of a workbook
        │   └── SinkRowError              one row is invalid: ``index`` is its position in the batch
        │       └── SinkColumnError       the row has a column that the sink lacks
        ├── WriterClosedError             the batch writer is not open
        ├── DeadLettersError              the dead-letter file cannot be read or written
        │   └── DeadLettersFullError      the dead-letter file has reached its size limit
        └── DatabaseError                 the database could not run a statement
            ├── DatabaseUnavailableError  unreachable, access refused, or no reply before the deadline
            ├── DatabaseBusyError         a lock or a free connection took longer than the timeout
            ├── DatabaseFullError         the disk of the database is full
            ├── DatabaseReadOnlyError     the database accepts reads only
            └── DatabaseSchemaError       a migration is missing (names it, and the command to run)

A limiter's refusal is a return value, not an exception: ``acquire`` returns ``False`` and ``decide`` returns
a ``Decision``. Code that makes a call on behalf of a caller (``Upstream``, decorators, context managers) has
no such return value, and raises a ``RefusedError`` instead.

This module does not depend on the rest of comporta.
"""

from __future__ import annotations


class ComportaError(Exception):
    """Base class of every exception that comporta raises for anything other than an invalid argument."""


class RefusedError(ComportaError):
    """A policy refused the call, so it was not made.

    ``name`` is the limit, breaker or cache that refused. A retry may succeed after ``retry_after`` seconds.
    ``forced`` is true if an operator refuses all calls. No end is then known: ``retry_after`` is only a
    suggested interval for asking again, and HTTP responses omit it.
    """

    forced: bool = False

    def __init__(self, message: str, name: str, retry_after: float) -> None:
        super().__init__(message, name, retry_after)
        self.name = name
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class CircuitOpenError(RefusedError):
    """A circuit breaker is open, or half-open with all its probes in use.

    ``reason`` describes the last failure, or is the operator's reason if the circuit is held open
    (``forced``). ``since`` is when the breaker opened, in Unix seconds, or ``None`` if that is unknown.
    """

    def __init__(
        self,
        name: str,
        reason: str,
        since: float | None,
        retry_after: float,
        forced: bool = False,
    ) -> None:
        super().__init__(reason, name, retry_after)
        self.args = (name, reason, since, retry_after, forced)
        self.reason = reason
        self.since = since
        self.forced = forced

    def __str__(self) -> str:
        text = f"{self.name}: the circuit is open, try again in {self.retry_after:.1f} s"
        if self.forced:
            text = f"{self.name}: the circuit is held open by an operator"
        return f"{text} ({self.reason})" if self.reason else text


class CacheUnavailableError(RefusedError):
    """The cache holds no value for the key, and its source failed too recently to be called again.

    ``__cause__`` is a copy of the source's error if it was raised in this process.
    """


class CachePendingError(CacheUnavailableError):
    """The cache holds no value yet: its load did not end within the caller's timeout, or could not begin."""


class LimitReachedError(RefusedError):
    """A rate limit, a pause or a concurrency limit left no capacity before the caller's timeout."""


class StateError(ComportaError):
    """The store could not apply an operation; the message says whether the operation took effect."""


class StateUnavailableError(StateError):
    """The store cannot reach its server, or cannot use its file."""


class StateAuthError(StateUnavailableError):
    """The server rejects the credentials. Retrying does not help: an operator has to correct them."""


class StatePermissionError(StateAuthError):
    """The server accepts the user, but denies it a command or a key that comporta needs."""


class StateMovingError(StateUnavailableError):
    """A cluster is moving the keys of the operation, and some are on another node. Other keys still work."""


class StateTimeoutError(StateError):
    """The store did not reply in time; the operation may or may not have taken effect."""


class StateFullError(StateError):
    """The store has no room for a new key. Existing keys keep their state."""


class StateTypeError(StateError):
    """The key holds data that comporta did not write. The data is left unchanged."""


class ChannelClosedError(ComportaError):
    """The channel is closed: it accepts no more items, or every item in it was received."""


class PipelineError(ComportaError):
    """A pipeline run cannot continue. Items that were confirmed stay confirmed."""


class SourceError(PipelineError):
    """A source cannot be read, or does not have the declared format."""


class CheckpointError(PipelineError):
    """A checkpoint cannot be used; the message says why and what to do."""


class DatabaseError(ComportaError):
    """The database could not run a statement. Nothing took effect, unless the message says otherwise."""


class DatabaseUnavailableError(DatabaseError):
    """The database server or file cannot be used, or did not reply in time."""


class DatabaseBusyError(DatabaseError):
    """Other users held a lock, or every connection, for longer than the timeout."""


class DatabaseFullError(DatabaseError):
    """The disk of the database is full."""


class DatabaseReadOnlyError(DatabaseError):
    """The database is a replica, or the file or the user lacks write permission."""


class DatabaseSchemaError(DatabaseError):
    """A table or a column is missing because a migration was not run."""


class SinkError(ComportaError):
    """Rows could not be written; the message says which sink, where and why."""


class SinkUnavailableError(SinkError):
    """A sink cannot be opened, reached or written."""


class SinkBusyError(SinkUnavailableError):
    """A sink asks for a later retry, for example because a quota is exhausted.

    Retry after ``retry_after`` seconds.
    """

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class SinkAuthError(SinkError):
    """A sink rejects the credentials or denies a permission. Retrying does not help."""


class SinkNotFoundError(SinkError):
    """The target of a sink does not exist, or was deleted."""


class SinkFullError(SinkError):
    """The sink has no room for more rows."""


class SinkRowError(SinkError):
    """The sink cannot store one row of a batch, and wrote nothing of that batch.

    ``index`` is the position of the row in the batch. The other rows can be written without it.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message, index)
        self.index = index

    def __str__(self) -> str:
        return str(self.args[0])


class SinkColumnError(SinkRowError):
    """A row has a column that the sink does not have."""


class WriterClosedError(ComportaError):
    """A batch writer that is not open accepts no rows."""


class DeadLettersError(ComportaError):
    """The dead-letter file cannot be used; ``line`` is the line number if a single line is invalid."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message, line)
        self.line = line

    def __str__(self) -> str:
        return str(self.args[0])


class DeadLettersFullError(DeadLettersError):
    """The dead-letter file has reached its size limit. The file keeps everything written so far."""
