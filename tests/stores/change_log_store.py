"""A store in memory that keeps a change log, as a server does."""

from __future__ import annotations

import uuid

from tests.stores.manual_heartbeat import FailingStore, ManualHeartbeat

from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


class ChangeLogStore(MemoryStore):
    """State in memory with a change log."""

    keeps_changes = True


class FailingChangeLogStore(FailingStore):
    """State in memory with a change log, that raises ``error`` for as long as it is set."""

    keeps_changes = True


def manual_failover_with_changes(clock: ManualClock) -> tuple[FailoverStore, FailingChangeLogStore]:
    """Return a failover store with a manual heartbeat, and the engine with a change log behind it."""
    primary = FailingChangeLogStore(clock)
    store = FailoverStore(lambda: primary, f"test://{uuid.uuid4().hex}", clock)
    store.heartbeat = ManualHeartbeat(store)
    return store, primary
