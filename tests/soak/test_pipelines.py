"""Runs that are killed at 20 random moments and resumed each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.kill_scenario import kill_and_resume


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["sqlite", "csv", "jsonl", "xlsx"])
def test_run__killed_20_times__every_item_is_in_the_files_once(kind: str, seed: int, tmp_path: Path) -> None:
    print(kill_and_resume(kind, tmp_path, items=20_000, kills=20, seed=seed))  # noqa: T201
