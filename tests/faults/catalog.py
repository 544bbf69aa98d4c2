"""The catalog of faults. A fault is one function that provokes it and checks what comporta promises.

Most faults concern the whole server and have the same effect (:func:`check_outage`): such a function only
provokes the fault and ends it. Other functions check the effect themselves. The name of a fault is its name
in the table of ``docs/reference/failover.md``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tests.faults.environment import FAST_REFILL, NO_DEADLINE, RECOVERY_SECONDS_MAX, Caller, FaultEnvironment

from comporta.testing.redis_server import wait_until

BLOCKING = ("blocking",)
BOTH = ("blocking", "awaiting")

Check = Callable[[FaultEnvironment], None]
Provoke = Callable[[FaultEnvironment], Iterator[None]]


class Fault(NamedTuple):
    """A fault, the function that provokes and checks it, and the kinds of callers it is tried with."""

    name: str
    check: Check
    faces: Collection[str]


FAULTS: list[Fault] = []


def fault(name: str, faces: Collection[str] = BOTH) -> Callable[[Check], Check]:
    """Add a function to the catalog."""

    def add(check: Check) -> Check:
        FAULTS.append(Fault(name, check, faces))
        return check

    return add


def outage(
    name: str,
    reason: str,
    carried_out: Collection[int] = (0, 1),
    *,
    lasting: bool = True,
    options: str = NO_DEADLINE,
) -> Callable[[Provoke], Provoke]:
    """Add a fault of the whole server: a generator that provokes it, yields, and ends it.

    ``reason`` is a regular expression for the reason that users see; ``carried_out`` how often the server may
    have carried out the call that met the fault. ``options`` are those of the URL: ``""`` for the default
    deadline of 50 ms.
    """

    def add(provoke: Provoke) -> Provoke:
        def check(env: FaultEnvironment) -> None:
            check_outage(env, provoke, reason, carried_out, lasting=lasting, options=options)

        fault(name)(check)
        return provoke

    return add


def check_outage(
    env: FaultEnvironment,
    provoke: Provoke,
    reason: str,
    carried_out: Collection[int],
    *,
    lasting: bool,
    options: str,
) -> None:
    """Check that callers are answered in time from the share, that no call is repeated, and the recovery."""
    caller, fast = env.caller(options=options), env.caller(FAST_REFILL, "fast", options)
    env.wait_until_served(caller)
    fast.acquire()
    before = env.charged()
    with contextmanager(provoke)(env):
        assert not caller.acquire(), "the share starts empty"
        if lasting:
            assert caller.fallback is not None
            assert re.search(reason, caller.fallback.reason), caller.fallback.reason
            assert not caller.decide()
            wait_until(fast.acquire, "the share grants something", RECOVERY_SECONDS_MAX)
        else:
            wait_until(lambda: _is_over(env, caller), "the fault has come and gone", RECOVERY_SECONDS_MAX)
        assert any(re.search(reason, event.text) for event in env.events("state_fallback"))
    env.wait_for_recovery(caller)
    assert max(0, env.charged() - before) in carried_out  # below 0: the server restarted empty
    env.wait_until_served(caller)
    wait_until(lambda: bool(env.events("state_recovered")), "the recovery is published", RECOVERY_SECONDS_MAX)


def _is_over(env: FaultEnvironment, caller: Caller) -> bool:
    """Call until the planned fault has happened; the caller may have been in fallback before."""
    if not env.proxy.pending_faults:
        return True
    assert not caller.acquire()
    return False
