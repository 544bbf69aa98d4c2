"""Translation of errors of the server, the network and redis-py into ``StateError`` subclasses.

The text of an error matters as much as its class: older servers answer inside a script with a bare error, and
redis-py removes the error code if it has a class for the error. No message contains a password. Pure: this
module opens no connection.
"""

from __future__ import annotations

import re

from comporta.errors import (
    StateAuthError,
    StateError,
    StateMovingError,
    StatePermissionError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)

_CODES_BY_CLASS = {
    "AskError": "ASK",
    "AuthenticationError": "NOAUTH",
    "BusyLoadingError": "LOADING",
    "ClusterCrossSlotError": "CROSSSLOT",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}
"""The server's error code for each of redis-py's classes."""

_DENIED_CODES = {"NOAUTH", "NOPERM", "WRONGPASS"}
_CLUSTER_CODES = {"ASK", "CROSSSLOT", "MOVED", "TRYAGAIN"}
_STALE_CODES = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", *_DENIED_CODES - {"NOPERM"}}
_KNOWN_CODES = sorted(
    {*_CODES_BY_CLASS.values(), *_DENIED_CODES, "BUSY", "MISCONF", "NOREPLICAS", "WRONGTYPE"}
)
_CODE_PATTERN = re.compile(rf"(?:^|[-\s])({'|'.join(_KNOWN_CODES)})\b")
_WRONG_PASSWORD = re.compile(r"invalid (username-)?password|without any password configured", re.IGNORECASE)
_OTHER_NODE = "non local key"
"""Part of the error in a script that uses a key which a slot that is moving does not have on this node."""

_NO_PERMISSION = re.compile(r"ACL failure|user executing the script can't", re.IGNORECASE)


def error_code(error: BaseException | str) -> str:
    """Return the server's error code, such as ``READONLY``; empty if there is none."""
    text = str(error)
    match = _CODE_PATTERN.search(text)
    if match:
        return match[1]
    if _WRONG_PASSWORD.search(text):
        return "WRONGPASS"
    if _NO_PERMISSION.search(text):
        return "NOPERM"
    return _CODES_BY_CLASS.get(type(error).__name__, "")


def translate_error(error: Exception, address: str, keys: str = "") -> StateError:
    """Return the ``StateError`` for an error during a call."""
    text, code = str(error), error_code(error)
    if type(error).__name__ == "TimeoutError":
        return StateTimeoutError(
            f"{address} did not answer in time; the operation may have been carried out: {text}"
        )
    if code == "WRONGTYPE":
        return StateTypeError(f"one of {keys} holds a value of another type, left as it is: {text}")
    if _OTHER_NODE in text:
        return StateMovingError(
            f"{address} is moving {keys or 'a key'} to another node; the operation may be incomplete: {text}"
        )
    if code in _CLUSTER_CODES:
        return StateUnavailableError(
            f"{address} is a node of a cluster ({code}): use redis+cluster:// to reach all of it"
        )
    return _unavailable_error(f"{address} cannot be used", error, code)


def translate_connect_error(error: Exception, address: str) -> StateError:
    """Return the ``StateError`` for an error while connecting, as a new object for each waiting caller."""
    if isinstance(error, StateError):
        return type(error)(*error.args)
    return _unavailable_error(f"{address} cannot be reached, nothing was sent", error, error_code(error))


def invalidates_connection(error: BaseException) -> bool:
    """Whether the connection must be closed after the server answered with this error.

    After a failover, for example, the connection may lead to a replica.
    """
    return error_code(error) in _STALE_CODES


def _unavailable_error(problem: str, error: Exception, code: str) -> StateUnavailableError:
    text = str(error) or type(error).__name__
    detail = text if not code or code in text else f"{code} {text}"
    error_class = StateAuthError if code in _DENIED_CODES else StateUnavailableError
    return (StatePermissionError if code == "NOPERM" else error_class)(f"{problem}: {detail:.300}")
