"""Servers that do not let us in, or not far enough: an error at the start, and loud ever after."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.rows import row
from tests.faults.stage import LASTING, PATIENT, RETURN_SECONDS, UNHURRIED, Caller, Stage

from comporta import LimitConfig, StateDeniedError
from comporta.testing.servers import wait_until

PASSWORD = "correct-horse"  # noqa: S105 - of a server that lives for a second
WRONG = "battery-staple"
OPEN = LimitConfig(0.001, 100_000, fallback="open")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "state.md"
LEAST = re.findall(r"[~+]\S+", PAGE.read_text("utf-8").split("\nACL SETUSER ")[1].split("```")[0])
"""The rights that users are told to give; they must do for the way back, too."""


@row("the password is wrong at the start")
def _(stage: Stage) -> None:
    with stage.beside(password=PASSWORD) as closed:
        for password in (WRONG, ""):
            url = closed.url_as("", password) + UNHURRIED
            for limit, name in ((LASTING, "tested"), (OPEN, "open")):
                _never_let_in(closed.caller_at(url, limit, name))
        closed.settle(closed.caller(options=PATIENT))  # with the right one it works


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
    url = stage.url_as("app", "secret") + UNHURRIED
    _never_let_in(stage.caller_at(url, OPEN, "tested"))


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


def _never_let_in(caller: Caller) -> None:
    """See that it is raised, time and again; only who could not wait to hear of it is answered otherwise."""
    heard: list[str] = []
    while len(heard) < 3:
        wait_until(lambda: _refused(caller, heard), "a caller is told that it may not", RETURN_SECONDS)
    assert all(re.search("NOAUTH|WRONGPASS|NOPERM", said) for said in heard)
    assert not any(WRONG in said for said in heard)


def _refused(caller: Caller, heard: list[str]) -> bool:
    try:
        caller.acquire()
    except StateDeniedError as error:
        heard.append(str(error))
        return True
    return False


def _shut_out(stage: Stage, tested: Caller, open_: Caller) -> None:
    """See that callers are answered, that nothing is simply let through, and that it is said aloud."""
    wait_until(lambda: not tested.acquire(), "a caller is shut out", RETURN_SECONDS)
    wait_until(lambda: tested.fallback is not None, "the worker's own beat is refused, too", RETURN_SECONDS)
    assert tested.fallback is not None
    wait_until(lambda: not open_.acquire(), "nothing is simply let through", RETURN_SECONDS)
    assert not open_.decide()
    said = stage.events("state_fallback", "state_denied")
    assert said[-1].severity == "error"
    assert PASSWORD not in said[-1].text
