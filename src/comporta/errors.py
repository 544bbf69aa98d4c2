"""Every exception comporta raises on its own account.

::

    Exception
    ├── ValueError, TypeError           bad input: names the field, the allowed range and the value
    └── ComportaError
        └── StateError                  the state engine could not do what was asked
            ├── StateUnavailableError   unreachable, refused, or of the wrong kind
            │   └── StateDeniedError    the server knows us and says no: a password
            │       └── StateForbiddenError  a permission
            ├── StateTimeoutError       no answer within the bound
            ├── StateFullError          no room for a new key; live keys are never evicted
            └── StateTypeError          something else lives at the key (names it; left untouched)

A refusal by a limit is not an error: ``acquire`` answers ``False``, ``decide`` a ``Decision``.
"""

from __future__ import annotations


class ComportaError(Exception):
    """Root of everything comporta raises that is not plain bad input."""


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
