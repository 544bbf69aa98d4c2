"""Operations under the override records of their limits, as a server's script sees them.

A worker sends the configured numbers of a limit, and the script applies the record of an operator's override,
a degradation or a pause. An operation's Python step decides by the strategy that the operation holds, so this
module returns a copy that holds the overridden strategy.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from comporta.limits.acquire import LimitDefinition
from comporta.limits.leases.operation import LeaseSource
from comporta.limits.operation import LimitDemand
from comporta.limits.strategies.base import Strategy
from comporta.stores.base import Operation

ReadRecord = Callable[[str], bytes | None]
"""Returns the override record of the limit with a name."""


def with_overrides(operation: Operation[Any], read: ReadRecord) -> Operation[Any]:
    """Return the operation as the server carries it out, under the records that ``read`` returns."""
    changed = copy(operation)
    name = getattr(operation, "name", "")
    for slot in _slots(type(operation)):
        value = getattr(operation, slot, None)
        if isinstance(value, Strategy):
            setattr(changed, slot, value.with_override(read(name)))
        elif isinstance(value, LimitDemand):
            setattr(changed, slot, _demand(value, read))
        elif isinstance(value, list | tuple) and value and isinstance(value[0], LimitDemand):
            setattr(changed, slot, [_demand(each, read) for each in value])
        elif isinstance(value, LimitDefinition):
            setattr(changed, slot, _definition(value, read))
        elif isinstance(value, LeaseSource):
            setattr(changed, slot, _source(value, read))
    return changed


def _slots(cls: type) -> list[str]:
    return [slot for base in cls.__mro__ for slot in getattr(base, "__slots__", ()) if slot != "__weakref__"]


def _demand(demand: LimitDemand, read: ReadRecord) -> LimitDemand:
    return demand._replace(strategy=demand.strategy.with_override(read(demand.name)))


def _definition(definition: LimitDefinition, read: ReadRecord) -> LimitDefinition:
    changed = copy(definition)
    changed.strategy = definition.strategy.with_override(read(definition.name))
    return changed


def _source(source: LeaseSource, read: ReadRecord) -> LeaseSource:
    changed = copy(source)
    changed.strategy = source.strategy.with_override(read(source.definition.name))
    return changed
