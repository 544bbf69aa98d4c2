"""The table of troubles. A row is one function: it provokes a trouble and holds comporta to what it promises.

Most troubles concern the server as a whole, and then the same must happen each time (:func:`withstand`);
such a row says only how to bring the trouble about and how to end it. Others say themselves what must happen.
The name of a row is what the table in ``docs/failover.md`` calls it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.faults.stage import LIVELY, RETURN_SECONDS, UNHURRIED, Caller, Stage

from comporta.testing.servers import wait_until

BLOCKING = ("blocking",)
BOTH = ("blocking", "awaiting")

Check = Callable[[Stage], None]
Provoke = Callable[[Stage], Iterator[None]]


class Row(NamedTuple):
    """A trouble, what to do about it, and for which callers that may differ."""

    name: str
    check: Check
    faces: Collection[str]


ROWS: list[Row] = []


def row(name: str, faces: Collection[str] = BOTH) -> Callable[[Check], Check]:
    """Enter a function in the table."""

    def enter(check: Check) -> Check:
        ROWS.append(Row(name, check, faces))
        return check

    return enter


def outage(
    name: str,
    why: str,
    carried_out: Collection[int] = (0, 1),
    *,
    lasting: bool = True,
    options: str = UNHURRIED,
) -> Callable[[Provoke], Provoke]:
    """Enter a trouble of the whole server: a generator that provokes it, yields, and ends it.

    ``why`` is what users are told (a regular expression); ``carried_out`` how often the server may have
    carried out the one call that met the trouble. ``options`` are those of the URL: ``""`` where the deadline
    of 50 ms is what ends the call.
    """

    def enter(provoke: Provoke) -> Provoke:
        def check(stage: Stage) -> None:
            withstand(stage, provoke, why, carried_out, lasting=lasting, options=options)

        row(name)(check)
        return provoke

    return enter


def withstand(
    stage: Stage, provoke: Provoke, why: str, carried_out: Collection[int], *, lasting: bool, options: str
) -> None:
    """See that callers are answered in time, from the share, by no repeated call; and that they come back."""
    tested, lively = stage.caller(options=options), stage.caller(LIVELY, "lively", options)
    stage.settle(tested)
    lively.acquire()
    before = stage.taken()
    with contextmanager(provoke)(stage):
        assert not tested.acquire(), "its share is empty at first"
        if lasting:
            assert tested.fallback is not None
            assert re.search(why, tested.fallback.why), tested.fallback.why
            assert not tested.decide()
            wait_until(lively.acquire, "the share grants something", RETURN_SECONDS)
        else:
            wait_until(lambda: _over(stage, tested), "the trouble has come and gone", RETURN_SECONDS)
        assert any(re.search(why, event.text) for event in stage.events("state_fallback"))
    stage.back(tested)
    assert max(0, stage.taken() - before) in carried_out  # below 0: it was started again, empty
    stage.settle(tested)
    assert stage.events("state_return")


def _over(stage: Stage, caller: Caller) -> bool:
    """Ask until what was planned has happened; a caller may have been on its own before."""
    if not stage.proxy.faults_to_come:
        return True
    assert not caller.acquire()
    return False
