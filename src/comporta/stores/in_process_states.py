"""The states of a store that are dictionaries of this process, for callers with a fast path of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from comporta.clock import Clock
    from comporta.stores.base import State, StateType


class InProcessStates(Protocol):
    """States in dictionaries of this process, for callers with a fast path of their own."""

    clock: Clock

    fast_path_until_us: int
    """Until when, by ``clock``, a caller may replace a state without the store's lock."""

    def space_states(self, space: str, state_type: StateType) -> dict[str, State]:
        """Return the live dictionary of a space. Callers may replace states but never add a key."""
