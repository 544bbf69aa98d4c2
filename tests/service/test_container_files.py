"""The commands of the Dockerfile and the compose file, run as they are written, on real servers.

No image is built here. Only addresses, ports and secrets are replaced by those of this test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from tests.service.harness import CLIENT, OUR_VARIABLES, PATIENCE_SECONDS
from tests.surface.test_deployment import COMPOSE, DOCKERFILE, instruction

from comporta.testing import PostgresServer, Server
from comporta.testing.programs import free_port

IMAGE_PORT = "8000"


@pytest.fixture
def environ(tmp_path: Path, postgres: PostgresServer, valkey: Server) -> Iterator[dict[str, str]]:
    """Yield the environment of the container, with servers of this test as its neighbours."""
    image = dict(each.split("=", 1) for each in instruction("ENV").split())
    written = {**image, **COMPOSE["services"]["comporta"]["environment"]}
    values = {name: re.sub(r"\$\{\w+:\?\}", "a-secret-of-this-test", text) for name, text in written.items()}
    replaced = {
        "REDIS_URL": valkey.url,
        "DATABASE_URL": postgres.schema_url("container"),
        "COMPORTA_SERVICE_PORT": str(free_port()),
    }
    assert {"REDIS_URL", "DATABASE_URL"} <= set(values)
    postgres.command("CREATE SCHEMA container")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(OUR_VARIABLES)}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**inherited, **values, **replaced, "PATH": path, "HOME": str(tmp_path)}
    postgres.command("DROP SCHEMA container CASCADE")


def test_image__command_health_check_and_stop_signal__serve_and_end(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    port = environ["COMPORTA_SERVICE_PORT"]
    command, check = json.loads(instruction("CMD")), instruction("HEALTHCHECK").removeprefix("CMD ")
    health_check = [part.replace(IMAGE_PORT, port) for part in json.loads(check)]
    assert f"EXPOSE {IMAGE_PORT}" in DOCKERFILE
    assert subprocess.run(
        health_check, cwd=tmp_path, env=environ, check=False, capture_output=True
    ).returncode
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"Serving at http://0.0.0.0:{port}\n"
        assert subprocess.run(health_check, cwd=tmp_path, env=environ, check=False).returncode == 0
        status = CLIENT.get(f"http://127.0.0.1:{port}/ultra-batch/jobs/none").status_code
        process.send_signal(signal.Signals[instruction("STOPSIGNAL")])
        ended = process.wait(PATIENCE_SECONDS)
    assert (status, ended) == (401, 0)


def test_compose__command_of_the_store__starts_it_without_eviction(valkey: Server) -> None:
    command = COMPOSE["services"]["valkey"]["command"]
    assert command[0] == "valkey-server"
    with Server(valkey.program, *command[1:]) as started:
        client = redis.Redis.from_url(started.url)
        settings = client.config_get("maxmemory", "maxmemory-policy", "save")
        client.close()
    assert settings == {"maxmemory": str(256 * 2**20), "maxmemory-policy": "noeviction", "save": ""}


def test_compose__health_check_of_the_database__finds_it_ready(postgres: PostgresServer) -> None:
    kind, program, *options = COMPOSE["services"]["postgres"]["healthcheck"]["test"]
    address = ["-h", "127.0.0.1", "-p", str(postgres.port)]
    ran = subprocess.run(
        [postgres.programs / program, *options, *address], check=False, capture_output=True, text=True
    )
    assert (kind, ran.returncode, "accepting connections" in ran.stdout) == ("CMD", 0, True)
