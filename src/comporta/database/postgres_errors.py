"""The errors of a PostgreSQL server as ``DatabaseError``."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from comporta.errors import (
    DatabaseBusyError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    DatabaseSchemaError,
    DatabaseUnavailableError,
)

_DEADLOCKS = ("40001", "40P01")
_ERROR_TYPES: dict[str, type[DatabaseError]] = {
    "25006": DatabaseReadOnlyError,  # a replica, or a session that may only read
    "42501": DatabaseReadOnlyError,  # the user lacks the permission
    "53100": DatabaseFullError,
    "53200": DatabaseFullError,
    "55P03": DatabaseBusyError,  # a lock timeout
    "57014": DatabaseBusyError,  # a statement timeout
    "3F000": DatabaseSchemaError,
    "42703": DatabaseSchemaError,
    "42P01": DatabaseSchemaError,
    **dict.fromkeys(_DEADLOCKS, DatabaseBusyError),
}


class NoReplyError(Exception):
    """The server did not answer before the deadline of the call."""


def call_error(error: NoReplyError | psycopg.Error, address: str, seconds: float) -> DatabaseError:
    """Return the ``DatabaseError`` for the failure of a call that may take ``seconds``."""
    if isinstance(error, psycopg.Error):
        return _translate_error(error, address)
    return DatabaseUnavailableError(
        f"{address}: no answer within {round(seconds, 3):g} s; whether the call took effect is unknown"
    )


def was_deadlock(error: DatabaseBusyError) -> bool:
    """Whether the server ended a transaction because of a deadlock, and rolled everything back."""
    return getattr(error.__cause__, "sqlstate", None) in _DEADLOCKS


def _translate_error(error: psycopg.Error, address: str) -> DatabaseError:
    message = " ".join(str(error).split()) or type(error).__name__
    text = f"{address}: {message}"
    state = error.sqlstate
    if state is None:
        error_class: Callable[[str], DatabaseError] = DatabaseError
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            error_class = DatabaseUnavailableError
        return error_class(text)
    error_type = _ERROR_TYPES.get(state)
    if error_type is DatabaseSchemaError:
        return DatabaseSchemaError(f"{text}; run `comporta db migrate`")
    if error_type is None and state[:2] in ("08", "28", "3D", "53", "57", "58"):
        error_type = DatabaseUnavailableError
    return (error_type or DatabaseError)(text)
