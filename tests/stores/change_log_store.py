"""A store in memory that keeps a change log, as a server does."""

from __future__ import annotations

import uuid
from typing import Any

from tests.stores.manual_heartbeat import FailingStore, ManualHeartbeat

from comporta.stores.base import Operation
from comporta.stores.failover.store import FailoverStore
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.memory import MemoryStore
from comporta.stores.records import WriteRecord
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


class Follower(HeartbeatSubscriber):
    """Follows one name of the change log and applies no operation."""

    change_name = "s:k"

    def __init__(self, *, closely: bool = False) -> None:
        self.closely = closely
        self.changed: list[int] = []
        self.confirmed: list[int] = []

    @property
    def follows_closely(self) -> bool:
        return self.closely

    def on_changed(self, version_us: int) -> None:
        self.changed.append(version_us)

    def on_confirmed(self, asked_ns: int) -> None:
        self.confirmed.append(asked_ns)

    def heartbeat_operation(self) -> Operation[Any] | None:
        return None

    def on_heartbeat_reply(self, reply: object) -> None:
        raise AssertionError("it has no operation")


def write(primary: FailingChangeLogStore, key: str, value: bytes) -> None:
    primary.apply(WriteRecord("s", key, value, None, change_name=f"s:{key}"))
