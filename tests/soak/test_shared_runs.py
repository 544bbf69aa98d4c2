"""A shared run of 200,000 lines, four workers of which three are killed at random moments (F11)."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline.shared_runs import kill_workers


def test_shared_run__200_000_lines_three_of_four_killed__settles_every_line_once(
    empty_database_url: str, tmp_path: Path
) -> None:
    print(  # noqa: T201
        kill_workers(empty_database_url, tmp_path, lines=200_000, workers=4, lease_seconds=10.0, seed=200)
    )
