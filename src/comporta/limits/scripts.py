"""The Lua scripts of limits, composed of the strategies' own Lua text.

A script contains only the strategies it needs, because a server pays for each definition at every call. This
module knows the order of the parts, and nothing of what they do.
"""

from __future__ import annotations

from functools import cache, partial

from comporta.limits.strategies.registry import strategy_type
from comporta.stores.base import Script, key_text
from comporta.stores.lua import lua

LIMIT_SPACE = "rate_limiter"
OVERRIDE_SPACE = "rate_limiter_change"

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
    return Script(
        f"take {name}",
        partial(_acquire_text, name),
        batchable=True,
        keys=(key_text(OVERRIDE_SPACE, limit_name),),
        arguments=arguments,
        with_worker_count=True,
    )


def lease_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that ends and grants leases of one limit of a strategy, for any of its keys."""
    return Script(
        f"lease {name}",
        partial(_lease_text, name),
        batchable=True,
        keys=(key_text(OVERRIDE_SPACE, limit_name),),
        arguments=arguments,
        with_worker_count=True,
    )


def call_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes a permit together with an amount from one limit of a strategy."""
    return Script(
        f"call {name}",
        partial(_call_text, name),
        batchable=True,
        keys=(key_text(OVERRIDE_SPACE, limit_name),),
        arguments=arguments,
        with_worker_count=True,
    )


def _group_text(names: tuple[str, ...]) -> str:
    strategies = [strategy_type(name).lua() for name in names]
    table = ", ".join(f"{name} = {name}" for name in names)
    return "\n".join([lua(*_SUPPORT), *strategies, f"local STRATEGIES = {{{table}}}", lua("limits/limit")])


@cache
def _acquire_text(name: str) -> str:
    return "\n".join([*_single_strategy(name), lua("limits/acquire")])


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
def _call_text(name: str) -> str:
    permits = lua("limits/concurrency/permit_support", "limits/concurrency/call")
    return "\n".join([*_single_strategy(name), permits])


def _single_strategy(name: str) -> list[str]:
    return [lua(*_SUPPORT), strategy_type(name).lua(), f"local strategy = {name}"]
