"""The dashboard of one worker: its parts, put together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from comporta.service.dashboard.document import document_bytes, history_bytes
from comporta.service.dashboard.doors import Doors
from comporta.service.dashboard.files import Files
from comporta.service.dashboard.kept import Kept
from comporta.service.dashboard.live import EVERY_SECONDS, HISTORY_SECONDS, Live, Shared

if TYPE_CHECKING:
    from comporta.service.parts import Parts


class Dashboard:
    """What its routes work with. It reads files, so it is to be made where that holds up nobody."""

    def __init__(self, parts: Parts) -> None:
        self.files = Files.read()
        self.doors = Doors(parts.config, parts.store)
        self.kept = Kept(parts)
        # a little less than a second, so that the next document is a new one however punctual a clock is
        self.document = Shared(partial(document_bytes, parts, self.kept), EVERY_SECONDS * 0.9)
        self.history = Shared(partial(history_bytes, parts), HISTORY_SECONDS)
        # others must still be able to connect, however many pages are open
        self.live = Live(self.document, self.history, parts.leaving, parts.config.connections_max // 2)

    async def aclose(self) -> None:
        """Look at nothing any more."""
        for part in (self.document, self.history, self.kept):
            await part.aclose()
