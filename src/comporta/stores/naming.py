"""What an error of the server, the network or redis-py is called here, and what it says of the connection.

The text counts as much as the class: older servers answer inside a script with a bare error, and redis-py
takes the first word off where it knows a class for it. Nothing here shows a password.
"""

from __future__ import annotations

import re

from comporta.errors import (
    StateDeniedError,
    StateError,
    StateForbiddenError,
    StateTimeoutError,
    StateTypeError,
    StateUnavailableError,
)

_WORDS = {
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
"""The server's first word for each of redis-py's classes."""

_DENIED = {"NOAUTH", "NOPERM", "WRONGPASS"}
_OF_A_CLUSTER = {"ASK", "CROSSSLOT", "MOVED", "TRYAGAIN"}
_STALE = {"CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", *_DENIED - {"NOPERM"}}
_KNOWN = sorted({*_WORDS.values(), *_DENIED, "BUSY", "MISCONF", "NOREPLICAS", "WRONGTYPE"})
_FOUND = re.compile(rf"(?:^|[-\s])({'|'.join(_KNOWN)})\b")
_WRONG_PASSWORD = re.compile(r"invalid (username-)?password|without any password configured", re.IGNORECASE)
_NO_PERMISSION = re.compile(r"ACL failure|user executing the script can't", re.IGNORECASE)


def word_of(error: BaseException | str) -> str:
    """Return the server's own word for what is wrong, such as ``READONLY``; empty where there is none."""
    text = str(error)
    found = _FOUND.search(text)
    if found:
        return found[1]
    if _WRONG_PASSWORD.search(text):
        return "WRONGPASS"
    if _NO_PERMISSION.search(text):
        return "NOPERM"
    return _WORDS.get(type(error).__name__, "")


def named(error: Exception, address: str, keys: str = "") -> StateError:
    """Return comporta's error for one that came up while a call was under way."""
    text, word = str(error), word_of(error)
    if type(error).__name__ == "TimeoutError":
        return StateTimeoutError(f"{address} did not answer in time; it may have been carried out: {text}")
    if word == "WRONGTYPE":
        return StateTypeError(f"one of {keys} holds something else, left as it is: {text}")
    if word in _OF_A_CLUSTER:
        return StateUnavailableError(
            f"{address} is a node of a cluster ({word}): use redis+cluster:// to reach all of it"
        )
    return _unusable(f"{address} cannot be used", error, word)


def unreached(error: Exception, address: str) -> StateError:
    """Return comporta's error for one that came up while connecting; a new one, for each who waited."""
    if isinstance(error, StateError):
        return type(error)(*error.args)
    return _unusable(f"{address} cannot be reached, nothing was sent", error, word_of(error))


def spoils(error: BaseException) -> bool:
    """Whether an error that the server answered means: do not come back on this connection.

    After a failover it may lead to what is a replica now.
    """
    return word_of(error) in _STALE


def _unusable(what: str, error: Exception, word: str) -> StateUnavailableError:
    text = str(error) or type(error).__name__
    said = text if not word or word in text else f"{word} {text}"
    kind = StateDeniedError if word in _DENIED else StateUnavailableError
    return (StateForbiddenError if word == "NOPERM" else kind)(f"{what}: {said:.300}")
