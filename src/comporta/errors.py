"""Every exception comporta raises on its own account.

::

    Exception
    ├── ValueError, TypeError           bad input: names the field, the allowed range and the value
    └── ComportaError
        ├── RefusedError                not now: carries ``retry_after``
        │   ├── CacheUnavailableError   nothing to serve, and the source is left alone for now
        │   ├── CircuitOpenError        the upstream is failing, and nobody calls it
        │   └── LimitReachedError       no room within the time one was ready to wait
        ├── StateError                  the state engine could not do what was asked
        │   ├── StateUnavailableError   unreachable, refused, or of the wrong kind
        │   │   └── StateDeniedError    the server knows us and says no: a password
        │   │       └── StateForbiddenError  a permission
        │   ├── StateTimeoutError       no answer within the bound
        │   ├── StateFullError          no room for a new key; live keys are never evicted
        │   └── StateTypeError          something else lives at the key (names it; left untouched)
        ├── ChannelClosedError          a channel takes nothing more in, or holds nothing more
        ├── PipelineError               a run of a pipeline cannot go on
        │   ├── SourceError             what is read cannot be read: which file and line, and why
        │   └── CheckpointError         where it stood cannot be read, written, or is about another source
        ├── SinkError                   rows could not be written: which sink, where, why
        │   ├── SinkUnavailableError    it cannot be opened, reached or written
        │   │   └── SinkBusyError       it asks to come back later: carries ``retry_after``
        │   ├── SinkDeniedError         it does not let us in, or not do this: somebody has to act
        │   ├── SinkMissingError        what was to be written to is not there
        │   ├── SinkFullError           no room: a disk, the last row of a workbook
        │   └── SinkRowError            one row cannot be kept as it is: ``index`` says which of those given
        │       └── SinkColumnError     it has a column that is not there
        ├── WriterClosedError           a batch writer is not open, or no longer
        ├── DeadLettersError            the file of dead letters cannot be written or read
        │   └── DeadLettersFullError    it has grown to its bound: somebody has to look
        └── DatabaseError               the database could not do what was asked
            ├── DatabaseUnavailableError  unreachable, refused, or no answer within the bound
            ├── DatabaseBusyError       others held what was needed for longer than the bound
            ├── DatabaseFullError       no room on its disk
            ├── DatabaseReadOnlyError   it can be read, not written
            └── DatabaseSchemaError     a migration is missing (names it, and how to run it)

A limiter's refusal is not an error: ``acquire`` answers ``False``, ``decide`` a ``Decision``. It becomes one
where there is nobody to answer to: in front of a call that somebody else makes.
"""

from __future__ import annotations


class ComportaError(Exception):
    """Root of everything comporta raises that is not plain bad input."""


class RefusedError(ComportaError):
    """It was not tried. ``name`` is what refused; after ``retry_after`` seconds it may be otherwise."""

    def __init__(self, text: str, name: str, retry_after: float) -> None:
        super().__init__(text, name, retry_after)
        self.name = name
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class CircuitOpenError(RefusedError):
    """A breaker is open, or half-open with all its probes given out.

    ``why`` is what failed last, ``since`` when it opened (Unix seconds; ``None`` where nobody knows).
    """

    def __init__(self, name: str, why: str, since: float | None, retry_after: float) -> None:
        super().__init__(why, name, retry_after)
        self.args = (name, why, since, retry_after)
        self.why = why
        self.since = since

    def __str__(self) -> str:
        text = f"{self.name}: the circuit is open, try again in {self.retry_after:.1f} s"
        return f"{text} ({self.why})" if self.why else text


class CacheUnavailableError(RefusedError):
    """There is nothing to serve for a key, and its source failed too recently to be asked again."""


class LimitReachedError(RefusedError):
    """A limit, a pause or the number of calls in flight left no room in time."""


class StateError(ComportaError):
    """The state engine could not apply an operation; whether it took effect is in the message."""


class StateUnavailableError(StateError):
    """The server or the file behind the state cannot be used."""


class StateDeniedError(StateUnavailableError):
    """The server refuses the password or the permission; waiting does not help, somebody has to act."""


class StateForbiddenError(StateDeniedError):
    """The server lets us in, but this user may not use a command or a key that is needed."""


class StateTimeoutError(StateError):
    """The state did not answer in time; the operation may or may not have taken effect."""


class StateFullError(StateError):
    """The table has no room for a new key. Keys that are alive keep their state."""


class StateTypeError(StateError):
    """The key holds something that comporta did not write; it was left as it is."""


class ChannelClosedError(ComportaError):
    """A channel was closed: nothing more can be sent, or all that was in it was received."""


class PipelineError(ComportaError):
    """A run of a pipeline cannot go on; what was confirmed stays so."""


class SourceError(PipelineError):
    """A source cannot be read, or is not of the form it was said to have."""


class CheckpointError(PipelineError):
    """A checkpoint cannot be used: the message says why, and what to do."""


class DatabaseError(ComportaError):
    """The database could not do what was asked. Nothing took effect, unless the message says otherwise."""


class DatabaseUnavailableError(DatabaseError):
    """The server or the file cannot be used, or did not answer in time."""


class DatabaseBusyError(DatabaseError):
    """Others held a lock, or all connections, for longer than one is ready to wait."""


class DatabaseFullError(DatabaseError):
    """There is no room for more."""


class DatabaseReadOnlyError(DatabaseError):
    """A replica, a file without the right to write, or a user without it."""


class DatabaseSchemaError(DatabaseError):
    """A table or a column is missing: a migration was not run."""


class SinkError(ComportaError):
    """Rows could not be written; the message says which sink, where and why."""


class SinkUnavailableError(SinkError):
    """A sink cannot be opened, reached or written."""


class SinkBusyError(SinkUnavailableError):
    """A sink says that it has had enough for now, such as a quota that is used up."""

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class SinkDeniedError(SinkError):
    """A sink refuses the credentials or the permission; waiting does not help, somebody has to act."""


class SinkMissingError(SinkError):
    """What was to be written to is not there, or no longer."""


class SinkFullError(SinkError):
    """There is no room for more rows."""


class SinkRowError(SinkError):
    """A row cannot be kept as it is, now or later; nothing of its batch was, the others can be.

    ``index`` is its place among the rows that were given.
    """

    def __init__(self, text: str, index: int) -> None:
        super().__init__(text, index)
        self.index = index

    def __str__(self) -> str:
        return str(self.args[0])


class SinkColumnError(SinkRowError):
    """A row has a column for which the sink has no place."""


class WriterClosedError(ComportaError):
    """A batch writer that is not open takes no rows."""


class DeadLettersError(ComportaError):
    """The file of dead letters cannot be used; ``line`` is where, if it is one of its lines."""

    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text, line)
        self.line = line

    def __str__(self) -> str:
        return str(self.args[0])


class DeadLettersFullError(DeadLettersError):
    """There is no room for another letter within the bound; nothing was thrown away."""
