"""Workers of a shared run are killed, or its server restarts: every line is settled exactly once (F11)."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path

from tests.pipeline.shared_runs import PATIENCE_SECONDS, check_settled_once, done_lines, kill_workers, work
from tests.support import wait_until

from comporta.testing import PostgresServer


def test_shared_run__three_of_four_workers_killed__settles_every_line_once(
    empty_database_url: str, tmp_path: Path
) -> None:
    kill_workers(empty_database_url, tmp_path, lines=3000, workers=4, lease_seconds=2.0, seed=11)


def test_shared_run__server_restarted_in_the_middle__settles_every_line_once(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """The worker waits for the server, and writes what it could not write before."""
    schema = f"t_{uuid.uuid4().hex}"
    postgres.command(f"CREATE SCHEMA {schema}")
    url = postgres.schema_url(schema)
    path = tmp_path / "input.txt"
    path.write_text("".join(f"item {number}\n" for number in range(1, 3001)))
    worker = threading.Thread(target=work, args=(url, path, 30.0))
    worker.start()
    try:
        wait_until(lambda: done_lines(url) >= 500)
        postgres.restart()
    finally:
        worker.join(PATIENCE_SECONDS)
    check_settled_once(url, 3000)
    postgres.command(f"DROP SCHEMA {schema} CASCADE")
