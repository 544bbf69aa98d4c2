"""Servers that do not let us in, or not far enough: an error at the start, and loud ever after."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.faults.rows import row
from tests.faults.stage import LASTING, RETURN_SECONDS, UNHURRIED, Caller, Stage

from comporta import LimitConfig, StateDeniedError
from comporta.testing.servers import wait_until

PASSWORD = "correct horse"  # noqa: S105 - of a server that lives for a second
WRONG = "battery staple"
OPEN = LimitConfig(0.001, 100_000, fallback="open")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
LEAST = re.findall(r"[~+]\S+", re.findall(r"^ACL SETUSER .*$", PAGE.read_text("utf-8"), re.MULTILINE)[0])
"""The rights that users are told to give; they must do for the way back, too."""


@row("the password is wrong at the start")
def _(stage: Stage) -> None:
    with stage.beside(password=PASSWORD) as closed:
        for url in (closed.url_as("", WRONG.replace(" ", "%20")), closed.url_as("", "")):
            for limit, name in ((LASTING, "tested"), (OPEN, "open")):
                caller = closed.caller_at(url, limit, name)
                for _ in range(2):
                    with pytest.raises(StateDeniedError) as raised:
                        _answered(caller)
                    assert WRONG not in str(raised.value)
                    assert caller.fallback is None
        assert closed.caller().acquire(), "with the right one it works"


@row("the password is changed later")
def _(stage: Stage) -> None:
    with stage.beside(password=PASSWORD) as closed:
        tested, open_ = closed.caller(options=UNHURRIED), closed.caller(OPEN, "open", UNHURRIED)
        closed.settle(tested, open_)
        closed.server.command("CONFIG", "SET", "requirepass", WRONG)
        closed.proxy.cut()
        _shut_out(closed, tested, open_)
        closed.server.password = WRONG
        closed.server.command("CONFIG", "SET", "requirepass", PASSWORD)
        closed.server.password = PASSWORD
        closed.back(tested)
        closed.settle(tested, open_)


@row("a permission is missing at the start")
def _(stage: Stage) -> None:
    stage.server.command("ACL", "SETUSER", "app", "on", ">secret", *LEAST, "-evalsha", "-eval")
    caller = stage.caller_at(stage.url_as("app", "secret"), OPEN, "tested")
    for _ in range(2):
        with pytest.raises(StateDeniedError, match="NOPERM"):
            _answered(caller)


@row("a permission is taken away later")
def _(stage: Stage) -> None:
    stage.server.command("ACL", "SETUSER", "app", "on", ">secret", *LEAST)
    url = stage.url_as("app", "secret") + UNHURRIED
    tested, open_ = stage.caller_at(url, LASTING, "tested"), stage.caller_at(url, OPEN, "open")
    stage.settle(tested, open_)
    stage.server.command("ACL", "SETUSER", "app", "-evalsha", "-eval")
    _shut_out(stage, tested, open_)
    stage.server.command("ACL", "SETUSER", "app", "+evalsha", "+eval")
    stage.back(tested)
    stage.settle(tested, open_)


def _answered(caller: Caller) -> bool:
    """Ask until there was an answer; the first may come before the connection is made."""
    answer = caller.acquire()
    while caller.fallback is not None:
        answer = caller.acquire()
    return answer


def _shut_out(stage: Stage, tested: Caller, open_: Caller) -> None:
    """See that callers are answered, that nothing is simply let through, and that it is said aloud."""
    while tested.acquire():
        pass  # on a connection that was let in before
    assert tested.fallback is not None
    wait_until(lambda: not open_.acquire(), "nothing is simply let through", RETURN_SECONDS)
    assert not open_.decide()
    said = stage.events("state_fallback", "state_denied")
    assert said[-1].severity == "error"
    assert PASSWORD not in said[-1].text
