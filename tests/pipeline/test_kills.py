"""A killed run resumes: no item is missing, and no confirmed item is done again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.kill_scenario import kill_and_resume


@pytest.mark.parametrize(
    ("kind", "items", "kills"), [("sqlite", 100_000, 2), ("csv", 20_000, 2), ("jsonl", 10_000, 1)]
)
def test_run__killed_at_random_moments__resumes_and_loses_no_item(
    kind: str, items: int, kills: int, tmp_path: Path
) -> None:
    kill_and_resume(kind, tmp_path, items=items, kills=kills, seed=items + kills)
