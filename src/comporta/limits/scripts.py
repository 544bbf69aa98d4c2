"""The Lua scripts of limits, composed of the strategies' own Lua text.

A script contains only the strategies it needs, because a server pays for each definition at every call. This
module knows the order of the parts, but not what they do.
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
REPORT_SPACE = "rate_limiter_reports"

_ONE_LIMIT = ("limits/now", "limits/one_limit")
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
    return Script("limit:" + ",".join(ordered), text, batchable=True)


@cache
def charge_script(name: str) -> Script:
    """Return the script that charges limits of a strategy with what workers granted during an outage."""
    text = partial(_strategy_text, name, "limits/charge")
    return Script(f"charge {name}", text, batchable=True)


def acquire_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes from one limit of a strategy, for any of its keys."""
    text = partial(_fast_path_text, name, *_ONE_LIMIT, "limits/acquire")
    return _limit_script("take", text, name, limit_name, arguments)


def acquire_up_to_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes what is available from one limit of a strategy, for any of its keys."""
    text = partial(_strategy_text, name, "limits/headroom", *_ONE_LIMIT, "limits/acquire_up_to")
    return _limit_script("take up to", text, name, limit_name, arguments)


def peek_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that asks one limit of a strategy how long a caller would wait, for any key."""
    text = partial(_strategy_text, name, "limits/headroom", *_ONE_LIMIT, "limits/peek")
    return _limit_script("peek", text, name, limit_name, arguments)


def settle_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that settles what calls of one limit of a strategy cost, for any of its keys."""
    return _limit_script("settle", partial(_settle_text, name), name, limit_name, arguments)


def lease_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that ends and grants leases of one limit of a strategy, for any of its keys."""
    return _limit_script("lease", partial(_lease_text, name), name, limit_name, arguments)


def claim_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes from one limit of a strategy with a class, in order with other waiters."""
    claims = ("limits/claim_support", "limits/claims")
    text = partial(_fast_path_text, name, "limits/headroom", *_ONE_LIMIT, *claims)
    return _limit_script("claim", text, name, limit_name, arguments)


def call_script(name: str, limit_name: str, arguments: tuple[int, ...]) -> Script:
    """Return the script that takes a permit together with an amount from one limit of a strategy."""
    permits = ("limits/concurrency/permit_support", "limits/one_limit", "limits/concurrency/call")
    text = partial(_strategy_text, name, *permits)
    return _limit_script("call", text, name, limit_name, arguments)


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
    )


def _group_text(names: tuple[str, ...]) -> str:
    strategies = [strategy_type(name).lua() for name in names]
    table = ", ".join(f"{name} = {name}" for name in names)
    parts = lua("limits/headroom", "limits/claim_support", "limits/limit")
    return "\n".join([lua(*_SUPPORT), *strategies, f"local STRATEGIES = {{{table}}}", parts])


@cache
def _strategy_text(name: str, *parts: str) -> str:
    return "\n".join([*_single_strategy(name), lua(*parts)])


@cache
def _fast_path_text(name: str, *parts: str) -> str:
    return "\n".join([strategy_type(name).acquire_lua(), _strategy_text(name, *parts)])


@cache
def _lease_text(name: str) -> str:
    return "\n".join(
        [
            *_single_strategy(name),
            lua(*_ONE_LIMIT, "limits/leases/params"),
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


def _single_strategy(name: str) -> list[str]:
    return [lua(*_SUPPORT), strategy_type(name).lua(), f"local strategy = {name}"]
