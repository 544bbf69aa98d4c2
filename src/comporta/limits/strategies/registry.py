"""Limiting strategies by name: the built-in ones, and any that a program registers.

Configurations, settings files and scripts find a strategy here; the strategy itself declares everything else.
"""

from __future__ import annotations

import re

from comporta.limits.strategies.calendar_window import calendar_strategy_of_name
from comporta.limits.strategies.fixed_window import FixedWindowStrategy
from comporta.limits.strategies.leaky_bucket import LeakyBucketStrategy
from comporta.limits.strategies.registered_strategy import RegisteredStrategy
from comporta.limits.strategies.sliding_window import SlidingWindowStrategy
from comporta.limits.strategies.token_bucket import TokenBucketStrategy

_NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_strategy_types: dict[str, type[RegisteredStrategy]] = {}


def register_strategy(strategy_type: type[RegisteredStrategy]) -> None:
    """Make a strategy available under its ``name``, for every limiter that this process creates from now on.

    Every worker that shares the state must register the strategy. Registering the same class again has no
    effect.
    """
    name = strategy_type.name
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"name of a strategy must be 1 to 50 of a-z 0-9 _ and start with a letter, got {name!r}"
        )
    other = _strategy_types.setdefault(name, strategy_type)
    if other is not strategy_type:
        raise ValueError(f"name of a strategy must be unique, got {name!r}: {other.__qualname__} has it")


def strategy_names() -> tuple[str, ...]:
    """Return the names of all registered strategies."""
    return tuple(_strategy_types)


def strategy_type(name: str) -> type[RegisteredStrategy]:
    """Return the strategy of a name; ``ValueError`` if no strategy has it."""
    registered = _strategy_types.get(name) or calendar_strategy_of_name(name)
    if registered is None:
        names = ", ".join(_strategy_types)
        raise ValueError(
            f"strategy must be one of {names}, got {name!r:.50}: register_strategy() adds others"
        )
    return registered


for _built_in in (TokenBucketStrategy, FixedWindowStrategy, SlidingWindowStrategy, LeakyBucketStrategy):
    register_strategy(_built_in)
