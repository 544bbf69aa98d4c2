"""Every scenario of the demo, run to its end with its output in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.demo.demo_process import running_demo

from comporta.demo.scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_demo__every_scenario__runs_to_its_end(name: str, tmp_path: Path) -> None:
    with running_demo(tmp_path / "demo", "--scenario", name) as demo:
        assert demo.wait() == 0, demo.output()
        assert "!!" not in demo.output()
        assert demo.leftovers() == []
