"""How the service is configured, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.service.running import OURS, TOKEN, awaited, config, running

from comporta import events
from comporta.cli.commands import comporta
from comporta.errors import StateDeniedError
from comporta.service import parts
from comporta.service.app import create_app
from comporta.service.batch.processing import load_processor
from comporta.service.config import ServiceConfig
from comporta.settings import RetrySettings
from comporta.testing import Server

FILE = f"""
state = "memory://from-the-file"

[upstreams.pncp]
timeout = 5

[service]
port = 9000
admin_token = "{TOKEN}"
trusted_proxies = ["10.0.0.0/8"]

[service.search]
fresh = 60
stale = 120

[service.addresses]
pncp = "http://127.0.0.1:8081"
"""


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(OURS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def written(folder: Path, text: str = FILE) -> str:
    path = folder / "service.toml"
    path.write_text(text)
    return str(path)


def test_config__nothing_said__is_embedded(tmp_path: Path) -> None:
    found = ServiceConfig.load(environ={})
    assert (found.host, found.port, found.workers) == ("127.0.0.1", 8000, 1)
    assert found.state == "shared://"
    assert found.database == f"sqlite:///{tmp_path}/data/comporta/comporta.db"
    assert found.sheets == tmp_path / "data" / "comporta" / "sheets"
    assert (found.admin_token, found.allow_private_addresses, found.share_breakers) == (None, False, True)
    assert found.addresses["pncp"] == "https://pncp.gov.br"
    limits = {name: one.limit.limit for name, one in found.settings.upstreams.items() if one.limit}
    assert limits == {"pncp": "10/s", "pcp": "5/s"}


def test_config__retries_of_a_source__are_few_unless_said_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text("[upstreams.pncp.retry]\nbase = 2\n[upstreams.pcp]\nretry = false\n")
    upstreams = ServiceConfig.load(path, {}).settings.upstreams
    pncp = upstreams["pncp"].retry
    assert isinstance(pncp, RetrySettings)
    assert (pncp.retries, pncp.base) == (2, 2)
    assert upstreams["pcp"].retry is False


def test_config__two_variables__move_it_to_a_fleet() -> None:
    environ = {"REDIS_URL": "redis://user:secret@cache/0", "DATABASE_URL": "postgresql://user:secret@db/name"}
    found = ServiceConfig.load(environ=environ)
    assert (found.state, found.database) == (environ["REDIS_URL"], environ["DATABASE_URL"])
    assert "secret" not in repr(found)


def test_config__file_and_variables__who_says_it_is_told(tmp_path: Path) -> None:
    environ = {
        "COMPORTA_SERVICE_PORT": "9001",
        "COMPORTA_SERVICE_SEARCH_STALE": "600",
        "COMPORTA_SERVICE_DATABASE": "sqlite:///ours.db",
        "COMPORTA_SERVICE_SHEETS": str(tmp_path),
        "COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES": "true",
        "COMPORTA_SERVICE_HOST": "",
        "DATABASE_URL": "mysql://somebody:else@db",
        "COMPORTA_UPSTREAM_PCP_MAX_WAIT": "2",
    }
    path = written(tmp_path)
    found = ServiceConfig.load(path, environ)
    told = {one.name: (one.value, one.where) for one in found.explained()}
    assert told["service.port"] == (9001, "COMPORTA_SERVICE_PORT")
    assert told["service.search.fresh"] == (60, f"{path}:13")
    assert told["service.search.stale"] == (600, "COMPORTA_SERVICE_SEARCH_STALE")
    assert told["service.database"] == ("sqlite:///ours.db", "COMPORTA_SERVICE_DATABASE")
    assert told["service.admin_token"] == ("***", f"{path}:9")
    assert told["service.host"] == ("127.0.0.1", "default")
    assert told["upstreams.pncp.timeout"] == (5, f"{path}:5")
    assert told["upstreams.pncp.limit.limit"] == ("10/s", "default")
    assert told["upstreams.pcp.max_wait"] == (2, "COMPORTA_UPSTREAM_PCP_MAX_WAIT")
    assert (found.trusted_proxies, found.allow_private_addresses) == (("10.0.0.0/8",), True)
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[service]\nprt = 1", ":2: [service]: fields must be among"),
        ("[service.search]\nfrsh = 1", ":2: [service.search]: fields must be among"),
        ("[service]\nport = 70000", ":2: [service]: port must be 0 to 65535, got 70000"),
        ("[service]\nworkers = 0", ":2: [service]: workers must be 1 to 64, got 0"),
        ("[service]\nhost = 'http://x'", "host must be a host name or an address"),
        (
            "[service]\ndatabase = 'mysql://me:secret@h/d'",
            "database must be a URL such as 'sqlite:///file.db' or 'postgresql://user:password@host/name'",
        ),
        (
            "[service]\nadmin_token = 'short'",
            "at least 16 ASCII characters without a space, got something else",
        ),
        ("[service]\nadmin_token = 'sixteen but blank'", "without a space, got something else"),
        ("[service]\nadmin_token = 'sixteen-but-ação'", "ASCII characters"),
        ("[service]\ntrusted_proxies = '10.0.0.0/8'", "must be a list of networks such as"),
        ("[service]\ntrusted_proxies = ['nowhere']", ":2: [service]: trusted_proxies must be addresses"),
        (
            "[service]\nclient_limit = 'many'",
            ":2: [service]: client_limit cannot be read: limit must look like",
        ),
        ("[service]\nclient_limit = true", ":2: [service]: client_limit must be text such as"),
        ("[service]\nbody_bytes_max = 10", "body_bytes_max must be 1024 to 1073741824, got 10"),
        (
            "[service.search]\nfresh = 60\nstale = 30",
            ":3: [service.search]: stale must be at least fresh, 60",
        ),
        (
            "[service.addresses]\npncp = 'ftp://x'",
            "pncp must be a URL such as 'https://host/path', got 'ftp://x'",
        ),
        ("service = 3", ":1: service must be a table, got 3"),
        ("[service]\nsearch = 3", "[service.search] must be a table, got 3"),
        ("upstreams = 3", ":1: [upstreams.pncp] must be a table, got 3"),
    ],
)
def test_config__mistake__is_told_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ServiceConfig.load(written(tmp_path, text), {})
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_config__variable_that_is_none__is_told() -> None:
    with pytest.raises(
        ValueError, match="COMPORTA_SERVICE_PRT must be one of 'COMPORTA_SERVICE_ADDRESSES_PCP'"
    ):
        ServiceConfig.load(environ={"COMPORTA_SERVICE_PRT": "1"})


def test_config__library_alone__minds_no_database_of_others() -> None:
    from comporta.settings import load_settings  # noqa: PLC0415 - for this one

    found = load_settings(environ={"DATABASE_URL": "mysql://somebody:else@db"})
    assert (found.service.database, dict(found.upstreams)) == (None, {})


@awaited
async def test_breakers__not_to_be_shared__are_this_workers_own(tmp_path: Path) -> None:
    async with running(tmp_path, USE_REDIS_CIRCUIT_BREAKER="false") as one:
        breaker = one.parts.upstreams["pncp"].breaker
        assert breaker is not None
        assert breaker.store is not one.parts.store
        await breaker.record_failure("no answer")
        found = (await one.client.get("/v1/health")).json()
        ordinary = config(tmp_path)
    assert found["pncp_circuit_breaker"]["failures"] == 1
    assert ordinary.share_breakers


@awaited
async def test_app__database_that_cannot_be_opened__starts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "service.db").mkdir()
    async with running(tmp_path) as asked:
        reply = await asked.client.get("/v1/health")
    assert (reply.status_code, reply.json()["database"]["status"]) == (503, "fail")


@awaited
async def test_app__state_that_cannot_be_read__does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state must start|shared:// takes keys"):
        async with running(tmp_path, COMPORTA_STATE="shared://name?colour=red"):
            pass


def test_app__no_configuration_given__reads_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_CONFIG", written(tmp_path))
    assert create_app().state.config.port == 9000


def test_check__configuration__shows_what_is_said_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:secret@db/name")
    ran = CliRunner().invoke(comporta, ["config", "check", path, "--json"])
    shown = {one["name"]: one["value"] for one in json.loads(ran.stdout)}
    assert ran.exit_code == 0
    assert (shown["service.port"], shown["service.database"]) == (9000, "postgresql://***@db/name")
    assert TOKEN not in ran.output
    table = CliRunner().invoke(comporta, ["config", "check", path, "--all"])
    assert (table.exit_code, "close_seconds" in table.output) == (0, True)


def test_check__nothing_said__says_so() -> None:
    ran = CliRunner().invoke(comporta, ["config", "check"])
    assert ran.output == "All is as it is by default; --all shows it.\n"


@pytest.mark.parametrize("command", [["config", "check"], ["serve", "--config"]])
@pytest.mark.parametrize(
    ("text", "said"), [("[service]\nport = 'x'", "port must be"), (None, "No such file or directory")]
)
def test_command__configuration_wrong__is_a_usage_error(
    command: list[str], text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    path = str(tmp_path / "none.toml") if text is None else written(tmp_path, text)
    ran = CliRunner().invoke(comporta, [*command, path])
    assert ran.exit_code == 2
    assert said in ran.output


@awaited
async def test_app__state_out_of_reach__starts_alone(tmp_path: Path) -> None:
    async with running(tmp_path, COMPORTA_STATE="redis://127.0.0.1:1/0") as asked:
        found = (await asked.client.get("/v1/health")).json()
    assert (found["status"], found["state"]["status"]) == ("warn", "warn")


@awaited
async def test_app__state_that_does_not_let_it_in__does_not_start(tmp_path: Path) -> None:
    with Server(password="secret") as server:  # noqa: S106 - of this test only
        url = f"redis://:wrong@127.0.0.1:{server.port}/0?timeout=5"
        with pytest.raises(StateDeniedError) as caught:
            async with running(tmp_path, COMPORTA_STATE=url):
                pass
    assert "wrong@" not in str(caught.value)


@awaited
async def test_app__end_that_takes_too_long__is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    async with running(tmp_path) as asked:
        monkeypatch.setattr(parts, "CLOSE_SECONDS", 0.05)
        monkeypatch.setattr(asked.parts.upstreams, "aclose", for_ever)
    assert events.latest_events()[-1].kind == "service_close"


def test_serve__address_that_is_not_ours__is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ran = CliRunner().invoke(comporta, ["serve", "--host", "203.0.113.1", "--port", "0", "--workers", "1"])
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: 203.0.113.1:0 cannot be listened at: ")


def test_serve__without_the_extra__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comporta.service.serving", None)
    ran = CliRunner().invoke(comporta, ["serve"])
    assert ran.exit_code == 1
    assert "pip install 'comporta[service]'" in ran.output


def test_serve__address_on_a_private_network__is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {**os.environ, "COMPORTA_SERVICE_ADDRESSES_PNCP": "http://127.0.0.1:9"}
    )
    ran = CliRunner().invoke(comporta, ["serve", "--port", "0"])
    assert (ran.exit_code, len(ran.output.splitlines())) == (1, 1)
    assert ran.output.startswith("Error: addresses.pncp: 127.0.0.1 must be on the public network")


def test_serve__database_in_a_folder_that_is_not_there__is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/none/service.db"
    monkeypatch.setattr(os, "environ", {**os.environ, "COMPORTA_SERVICE_DATABASE": url})
    ran = CliRunner().invoke(comporta, ["serve", "--port", "0"])
    assert (ran.exit_code, len(ran.output.splitlines())) == (1, 1)
    assert ran.output.startswith(f"Error: the database {tmp_path}/none/service.db must be in a folder that")


def test_serve__processor_in_the_current_folder__can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reports_of_a_shop.py").write_text("def analyse(account):\n    return account\n")
    (tmp_path / "comporta.toml").write_text('[service.batch]\nprocessor = "reports_of_a_shop:analyse"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    found = []

    def serving(config: ServiceConfig, _: object) -> None:
        found.append(load_processor(str(config.batch.processor)))

    monkeypatch.setattr("comporta.service.serving.serve", serving)
    ran = CliRunner().invoke(comporta, ["serve", "--config", "comporta.toml"])
    assert ran.exit_code == 0, ran.output
    assert [each("1001") for each in found] == ["1001"]
