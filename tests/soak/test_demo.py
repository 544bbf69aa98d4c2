"""Every story of the demo, played to its end as for a pipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.demo.running import running

from comporta.demo.stories import STORIES


@pytest.mark.parametrize("name", STORIES)
def test_demo__story__comes_to_its_end(name: str, tmp_path: Path) -> None:
    with running(tmp_path / "demo", "--scenario", name) as demo:
        assert demo.ended() == 0, demo.said()
        assert "!!" not in demo.said()
        assert demo.left() == []
