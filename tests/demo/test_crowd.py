"""The crowd of the demo, against the service with simulated portals."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.search.rig import Gate, open_rig

from comporta.demo import simulated_users
from comporta.demo.config import PEOPLE
from comporta.demo.crowd import DemoCrowd
from comporta.service.search import stream
from comporta.testing import ProcurementServer


def test_crowd__answers_are_pending_first__asks_again_until_they_are_complete(tmp_path: Path) -> None:
    async def run() -> None:
        with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as server:
            async with open_rig(tmp_path, server, timeout=1, page_timeout=60, search="days_max = 1") as rig:
                gate = Gate(server.pncp)
                crowd = DemoCrowd(rig.client, "http://service")
                crowd.start("all")

                async def everybody_has_a_part() -> bool:
                    return crowd.counts["parts"] == PEOPLE

                async def nobody_waits() -> bool:
                    return crowd.counts["waiting"] == 0 and crowd.counts["single"] == 1

                await rig.wait_until(everybody_has_a_part)
                assert crowd.counts["waiting"] == PEOPLE
                gate.open = True
                crowd.start("one")
                await rig.wait_until(nobody_waits)
                assert crowd.counts["whole"] == crowd.counts["answered"] == PEOPLE
                assert crowd.counts["single_ms"] > 0

    asyncio.run(run())


def test_users__stream_is_silent_until_its_keep_alive__do_not_count_it_as_broken() -> None:
    silence_max = stream.KEEPALIVE_SECONDS + stream.POLL_SECONDS
    assert 2 * silence_max <= simulated_users.HTTP_TIMEOUT_SECONDS
