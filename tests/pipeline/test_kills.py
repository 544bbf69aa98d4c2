"""A killed run resumes: each item has exactly one row or one dead letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.kill_scenario import kill_and_resume


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ("kind", "items", "kills"),
    [("sqlite", 5_000, 2), ("csv", 5_000, 3), ("jsonl", 5_000, 3), ("xlsx", 5_000, 2)],
)
def test_run__killed_at_random_moments__every_item_is_in_the_files_once(
    kind: str, items: int, kills: int, tmp_path: Path
) -> None:
    kill_and_resume(kind, tmp_path, items=items, kills=kills, seed=items + kills)
