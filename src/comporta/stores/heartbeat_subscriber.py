"""The interface of objects that use a store's heartbeat to poll the store, report to it or follow it.

The heartbeat itself is in ``failover/heartbeat.py``. This module does not know when it beats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from comporta.stores.base import Operation


class HeartbeatSubscriber(ABC):
    """Polls the store, or reports to it, between two heartbeats; a breaker's local view is an example."""

    __slots__ = ()

    @abstractmethod
    def heartbeat_operation(self) -> Operation[Any] | None:
        """Return the operation to apply now; ``None`` if there is nothing to do."""

    @abstractmethod
    def on_heartbeat_reply(self, reply: Any) -> None:
        """Handle the reply, on the heartbeat's thread. Must not raise."""

    change_name: str | None = None
    """The name of the followed object in the change log; ``None`` if the subscriber follows nothing.

    On a store that keeps a change log the heartbeat calls ``on_changed`` and ``on_confirmed`` before
    ``heartbeat_operation``.
    """

    @property
    def follows_closely(self) -> bool:
        """Whether it must receive changes within ``POLL_SECONDS`` instead of once a second."""
        return False

    def on_changed(self, version_us: int) -> None:  # noqa: B027 - a default
        """Handle a certain or possible change of the followed object: earlier reads are outdated."""

    def on_confirmed(self, asked_ns: int) -> None:  # noqa: B027 - a default
        """Handle that all changes up to ``asked_ns``, by the store's clock, have been passed on.

        Every 5 s it is not called, because everything must then be read whatever the log says.
        """

    def rejoin_operations(self) -> Sequence[Operation[Any]]:
        """Return the operations to apply to the shared store before this worker uses it after an outage.

        May be applied more than once in one recovery.
        """
        return ()

    def recovery_operation(self) -> Operation[Any] | None:
        """Return the operation that copies data that the shared store may have lost into the local state."""
        return None
