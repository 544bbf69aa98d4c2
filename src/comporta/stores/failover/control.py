"""What the heartbeat and bound limits use of a failover store, and the translation of engine errors.

``FailoverStore`` implements :class:`FailoverControl`; its parts depend on this module, not on that class.
"""

from __future__ import annotations

from typing import Final, Protocol

from comporta.errors import StateError, StateTimeoutError, StateUnavailableError
from comporta.stores.base import Store
from comporta.stores.failover.local_share import LocalShare

ENGINE_ERRORS: Final = (StateError, OSError)
"""The errors that an engine raises when it cannot be used. ``TimeoutError`` is an ``OSError``."""


def as_state_error(error: StateError | OSError, address: str) -> StateError:
    """Return the ``StateError`` for an error of an engine; only an ``OSError`` needs translation."""
    if isinstance(error, StateError):
        return error
    reason = str(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return StateTimeoutError(
            f"{address} did not answer in time; the operation may have been carried out: {reason}"
        )
    return StateUnavailableError(f"{address} cannot be used: {reason}")


class FailoverControl(Protocol):
    """The switch between a shared engine and this worker's local share."""

    address: str
    """The name of the state in events, log lines and metrics."""

    local_share: LocalShare | None
    """The local share during an outage; ``None`` while the engine is in use."""

    was_reached: bool
    """Whether the engine ever answered this worker."""

    @property
    def primary(self) -> Store:
        """The shared engine, opened on first use. May raise ``ENGINE_ERRORS``."""

    def fail_over(self, error: StateError | OSError, *, store_wide: bool = False) -> LocalShare:
        """Handle an error of the engine and return the local share that answers instead.

        Raises the error if the engine denies this worker before it ever answered. ``store_wide`` is true if a
        missing permission concerns all keys, not just one.
        """

    def record_denial(self, error: StateError) -> None:
        """Handle a server that denies this worker during an outage."""

    def recover(self) -> None:
        """End the outage: the engine is in use again."""
