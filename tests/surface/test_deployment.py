"""The files of the deployment page are shown as they are, well-formed, and start commands that exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from tests.surface.test_unit_file import parse_unit

from comporta.cli.root_command import comporta
from comporta.service.config import ServiceConfig, check_exposure

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "operations"
PAGE = (FOLDER / "deployment.md").read_text(encoding="utf-8")
UNIT = parse_unit((FOLDER / "comporta.service").read_text())
DOCKERFILE = re.sub(r"\\\n\s*", "", (FOLDER / "Dockerfile").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MARGIN_SECONDS = 10


def instruction(name: str) -> str:
    [value] = re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)
    return str(value)


def serve_options(command: list[str]) -> dict[str, Any]:
    """Return the options of a command ``comporta serve``; raises for one that does not exist."""
    assert command[1] == "serve"
    serve = comporta.get_command(click.Context(comporta), "serve")
    assert serve is not None
    return serve.make_context("serve", command[2:]).params


@pytest.mark.parametrize("name", ["comporta.service", "Dockerfile", "compose.yaml"])
def test_page__file__is_shown_as_it_is(name: str) -> None:
    blocks = re.findall(r"^```\w+\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert (FOLDER / name).read_text() in blocks


def test_unit__command__is_the_service_and_reload_is_sighup() -> None:
    service = UNIT["Service"]
    assert serve_options(shlex.split(service["ExecStart"]))["workers"] == 4
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["KillMode"] == "mixed"


def test_stop_times__unit_and_compose__are_longer_than_a_shutdown() -> None:
    config = ServiceConfig.load(environ={})
    needed = config.drain_seconds + config.close_seconds + MARGIN_SECONDS
    assert float(UNIT["Service"]["TimeoutStopSec"]) > needed
    assert float(COMPOSE["services"]["comporta"]["stop_grace_period"].removesuffix("s")) > needed


def test_dockerfile__instructions__are_known_and_the_command_serves() -> None:
    names = [line.split()[0] for line in DOCKERFILE.splitlines()]
    known = {"FROM", "RUN", "USER", "WORKDIR", "ENV", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "CMD"}
    assert (set(names), names[0]) == (known, "FROM")
    assert serve_options(json.loads(instruction("CMD")))["workers"] == 4
    assert "/readyz" in json.loads(instruction("HEALTHCHECK").removeprefix("CMD "))[2]


def validate(path: Path, schema: str) -> subprocess.CompletedProcess[str]:
    """Validate a file against a schema that comes with check-jsonschema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_compose__against_its_schema__is_valid_and_a_wrong_field_is_found(tmp_path: Path) -> None:
    valid = validate(FOLDER / "compose.yaml", "vendor.compose-spec")
    assert valid.returncode == 0, valid.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((FOLDER / "compose.yaml").read_text().replace("restart: unless", "restarts: unless"))
    found = validate(wrong, "vendor.compose-spec")
    assert (found.returncode, "restarts" in found.stdout) == (1, True)


def test_dockerfile__packages__are_extras_of_the_project() -> None:
    [extras] = re.findall(r"'comporta\[([\w,]+)\]'", instruction("RUN"))
    pyproject = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())
    assert set(extras.split(",")) <= set(pyproject["project"]["optional-dependencies"])


def test_compose__environment__is_a_valid_configuration_that_may_listen_on_all_addresses() -> None:
    services = COMPOSE["services"]
    image = dict(each.split("=") for each in instruction("ENV").split())
    environ = {**image, **services["comporta"]["environment"]}
    environ = {name: re.sub(r"\$\{\w+:\?\}", "a-secret-of-a-test", value) for name, value in environ.items()}
    config = ServiceConfig.load(environ=environ)
    check_exposure(config)
    assert (config.host, config.auth, config.log_format) == ("0.0.0.0", "tokens", "json")  # noqa: S104 - no bind
    assert config.state.startswith("redis://valkey:")
    assert config.database.endswith("@postgres/comporta")
    assert set(services) == {"comporta", "valkey", "postgres"}
    assert set(COMPOSE["volumes"]) == {"data"}


def test_kubernetes__example__parses_and_leaves_time_to_drain() -> None:
    [example] = re.findall(r"^```yaml\n(spec:.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    spec = yaml.safe_load(example)["spec"]
    [container] = spec["containers"]
    [drain] = [each["value"] for each in container["env"]]
    assert serve_options(container["args"])["workers"] == 2
    assert spec["terminationGracePeriodSeconds"] > float(drain) + 5 + MARGIN_SECONDS
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
