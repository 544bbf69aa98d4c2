"""The dashboard of one worker: the objects that its routes use."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from comporta.service.dashboard.auth import DashboardAuth
from comporta.service.dashboard.database_snapshot import DatabaseSnapshot
from comporta.service.dashboard.document import encode_document, encode_history
from comporta.service.dashboard.live import (
    DOCUMENT_INTERVAL_SECONDS,
    HISTORY_CACHE_SECONDS,
    CachedBytes,
    LiveUpdates,
)
from comporta.service.dashboard.static_files import PageFiles
from comporta.service.dashboard.status_memory import LastKnownFleet

if TYPE_CHECKING:
    from comporta.service.container import Container


class Dashboard:
    """The dashboard's files, authentication, documents and open pages. Creating it reads files and blocks."""

    def __init__(self, container: Container) -> None:
        self.files = PageFiles.load()
        self.auth = DashboardAuth(container.config, container.store)
        self.snapshot = DatabaseSnapshot(container)
        self.last_known = LastKnownFleet()
        # a little less than the interval, so that each tick builds a new document even if the clock jitters
        self.document = CachedBytes(
            partial(encode_document, container, self.snapshot, self.last_known),
            DOCUMENT_INTERVAL_SECONDS * 0.9,
        )
        self.history = CachedBytes(partial(encode_history, container, self.last_known), HISTORY_CACHE_SECONDS)
        # at most half of the connections, so that clients can connect however many pages are open
        self.live = LiveUpdates(
            self.document, self.history, container.shutting_down, container.config.connections_max // 2
        )

    async def aclose(self) -> None:
        """Stop building documents."""
        for part in (self.document, self.history, self.snapshot):
            await part.aclose()
