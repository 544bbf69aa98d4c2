"""The Lua scripts of limits, composed of the strategies' own Lua text.

A script contains only the strategies it needs, because a server pays for each definition at every call. This
module knows the order of the parts, and nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from comporta.limits.strategies.registry import strategy_type
from comporta.stores.base import Script, key_text
from comporta.stores.lua import lua

LIMIT_SPACE = "rate_limiter"
OVERRIDE_SPACE = "rate_limiter_change"
CLAIM_SPACE = "rate_limiter_claims"

_SUPPORT = ("limits/support", "limits/strategies/recent_traffic")


@cache
def limit_script(name: str) -> Script:
    """Return the script that decides limits of one strategy."""
    return group_script(frozenset({name}))


@cache
def group_script(names: frozenset[str]) -> Script:
    """Return the script that decides groups of limits of these strategies."""
    ordered = sorted(names)
    text = partial(_group_text, tuple(ordered))
    return Script("limit:" + ",".join(ordered), text, batchable=True, with_worker_count=True)


def acquire_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes from one limit of a strategy, for any of its keys."""
    return _limit_script("take", partial(_strategy_text, name, "limits/acquire"), name, limit_name, arguments)


def acquire_up_to_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes what there is from one limit of a strategy, for any of its keys."""
    text = partial(_strategy_text, name, "limits/acquire_up_to")
    return _limit_script("take up to", text, name, limit_name, arguments)


def peek_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that asks one limit of a strategy how long a caller would wait, for any key."""
    return _limit_script("peek", partial(_strategy_text, name, "limits/peek"), name, limit_name, arguments)


def settle_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that settles what calls of one limit of a strategy cost, for any of its keys."""
    return _limit_script("settle", partial(_settle_text, name), name, limit_name, arguments)


def lease_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that ends and grants leases of one limit of a strategy, for any of its keys."""
    return _limit_script("lease", partial(_lease_text, name), name, limit_name, arguments)


def claim_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes from one limit of a strategy with a class, in order with other waiters."""
    return _limit_script("claim", partial(_claim_text, name), name, limit_name, arguments)


def call_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes a permit together with an amount from one limit of a strategy."""
    return _limit_script("call", partial(_call_text, name), name, limit_name, arguments)


def _limit_script(
    action: str, text: Callable[[], str], name: str, limit_name: str, arguments: tuple[int, ...]
) -> Script:
    """Return a script for the keys of one limit; its parameters and its override are sent once."""
    return Script(
        f"{action} {name}",
        text,
        batchable=True,
        keys=(key_text(OVERRIDE_SPACE, limit_name),),
        arguments=arguments,
        with_worker_count=True,
    )


def _group_text(names: tuple[str, ...]) -> str:
    strategies = [strategy_type(name).lua() for name in names]
    table = ", ".join(f"{name} = {name}" for name in names)
    parts = lua("limits/headroom", "limits/limit")
    return "\n".join([lua(*_SUPPORT), *strategies, f"local STRATEGIES = {{{table}}}", parts])


@cache
def _strategy_text(name: str, last_part: str) -> str:
    return "\n".join([*_single_strategy(name), lua(last_part)])


@cache
def _lease_text(name: str) -> str:
    return "\n".join(
        [
            *_single_strategy(name),
            lua("limits/leases/params"),
            strategy_type(name).lease_lua(),
            lua("limits/leases/lease"),
        ]
    )


@cache
def _settle_text(name: str) -> str:
    return "\n".join(
        [
            *_single_strategy(name),
            lua("limits/budgets/params"),
            strategy_type(name).settle_lua(),
            lua("limits/budgets/settle"),
        ]
    )


@cache
def _claim_text(name: str) -> str:
    return "\n".join([*_single_strategy(name), lua("limits/headroom", "limits/claims")])


@cache
def _call_text(name: str) -> str:
    permits = lua("limits/concurrency/permit_support", "limits/concurrency/call")
    return "\n".join([*_single_strategy(name), permits])


def _single_strategy(name: str) -> list[str]:
    return [lua(*_SUPPORT), strategy_type(name).lua(), f"local strategy = {name}"]
