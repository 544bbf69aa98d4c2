"""Servers that deny access: an error at the start, and events of severity ``error`` later."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.catalog import fault
from tests.faults.environment import (
    NO_DEADLINE,
    RECOVERY_SECONDS_MAX,
    RELIABLE,
    SLOW_REFILL,
    Caller,
    FaultEnvironment,
)

from comporta import LimitConfig, StateAuthError
from comporta.testing.redis_server import wait_until

PASSWORD = "correct-horse"  # noqa: S105 - of a short-lived test server
WRONG = "battery-staple"
OPEN = LimitConfig(0.001, 100_000, fallback="open")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "stores.md"
DOCUMENTED_PERMISSIONS = re.findall(
    r"[~+]\S+", PAGE.read_text("utf-8").split("\nACL SETUSER ")[1].split("```")[0]
)
"""The permissions of the documentation; they must be enough for the recovery too."""


@fault("the password is wrong at the start")
def _(env: FaultEnvironment) -> None:
    with env.another(password=PASSWORD) as closed:
        for password in (WRONG, ""):
            url = closed.url_as("", password) + NO_DEADLINE
            for limit, name in ((SLOW_REFILL, "tested"), (OPEN, "open")):
                _assert_always_denied(closed.caller_at(url, limit, name))
        closed.wait_until_served(closed.caller(options=RELIABLE))  # the right password works


@fault("the password is changed later")
def _(env: FaultEnvironment) -> None:
    with env.another(password=PASSWORD) as closed:
        caller, open_ = closed.caller(options=NO_DEADLINE), closed.caller(OPEN, "open", NO_DEADLINE)
        closed.wait_until_served(caller, open_)
        closed.server.command("CONFIG", "SET", "requirepass", WRONG)
        closed.proxy.reset_connections()
        _assert_denied_later(closed, caller, open_)
        closed.server.password = WRONG
        closed.server.command("CONFIG", "SET", "requirepass", PASSWORD)
        closed.server.password = PASSWORD
        closed.wait_for_recovery(caller)
        closed.wait_until_served(caller, open_)


@fault("a permission is missing at the start")
def _(env: FaultEnvironment) -> None:
    env.server.command("ACL", "SETUSER", "app", "on", ">secret", *DOCUMENTED_PERMISSIONS, "-evalsha", "-eval")
    url = env.url_as("app", "secret") + NO_DEADLINE
    _assert_always_denied(env.caller_at(url, OPEN, "tested"))


@fault("a permission is revoked later")
def _(env: FaultEnvironment) -> None:
    env.server.command("ACL", "SETUSER", "app", "on", ">secret", *DOCUMENTED_PERMISSIONS)
    url = env.url_as("app", "secret") + NO_DEADLINE
    caller, open_ = env.caller_at(url, SLOW_REFILL, "tested"), env.caller_at(url, OPEN, "open")
    env.wait_until_served(caller, open_)
    env.server.command("ACL", "SETUSER", "app", "-evalsha", "-eval")
    _assert_denied_later(env, caller, open_)
    env.server.command("ACL", "SETUSER", "app", "+evalsha", "+eval")
    env.wait_for_recovery(caller)
    env.wait_until_served(caller, open_)


def _assert_always_denied(caller: Caller) -> None:
    """Check that calls raise; only one whose deadline ends too early is answered from the share."""
    messages: list[str] = []
    while len(messages) < 3:
        wait_until(lambda: _is_denied(caller, messages), "a caller is denied", RECOVERY_SECONDS_MAX)
    assert all(re.search("NOAUTH|WRONGPASS|NOPERM", message) for message in messages)
    assert not any(WRONG in message for message in messages)


def _is_denied(caller: Caller, messages: list[str]) -> bool:
    try:
        caller.acquire()
    except StateAuthError as error:
        messages.append(str(error))
        return True
    return False


def _assert_denied_later(env: FaultEnvironment, caller: Caller, open_: Caller) -> None:
    """Check that callers use their share, also those of an open limit, and that an event says so."""
    wait_until(lambda: not caller.acquire(), "a caller is denied", RECOVERY_SECONDS_MAX)
    wait_until(lambda: caller.fallback is not None, "the heartbeat is denied too", RECOVERY_SECONDS_MAX)
    assert caller.fallback is not None
    wait_until(lambda: not open_.acquire(), "the open limit uses its share", RECOVERY_SECONDS_MAX)
    assert not open_.decide()
    published = env.events("state_fallback", "state_denied")
    assert published[-1].severity == "error"
    assert PASSWORD not in published[-1].text
