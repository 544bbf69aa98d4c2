"""A run of 100,000 items, killed at twenty random moments and gone on with each time."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.pipeline.killed import kill_and_resume


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["sqlite", "csv", "jsonl"])
def test_run__killed_20_times__loses_nothing_and_repeats_nothing_that_was_confirmed(
    kind: str, seed: int, tmp_path: Path
) -> None:
    print(kill_and_resume(kind, tmp_path, items=100_000, kills=20, seed=seed))  # noqa: T201
