"""The configuration of the service, and how errors in it are reported."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.service.harness import OUR_VARIABLES, TOKEN, async_test, run_service, service_config

from comporta import events
from comporta.cli.root_command import comporta
from comporta.errors import StateAuthError
from comporta.service import container
from comporta.service.app import create_app
from comporta.service.batch.processor import load_processor
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
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(OUR_VARIABLES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def write_config(folder: Path, text: str = FILE) -> str:
    path = folder / "service.toml"
    path.write_text(text)
    return str(path)


def test_config__empty__uses_embedded_stores(tmp_path: Path) -> None:
    config = ServiceConfig.load(environ={})
    assert (config.host, config.port, config.workers) == ("127.0.0.1", 8000, 1)
    assert config.state == "shared://"
    assert config.database == f"sqlite:///{tmp_path}/data/comporta/comporta.db"
    assert config.sheets_folder == tmp_path / "data" / "comporta" / "sheets"
    assert (config.admin_token, config.allow_private_addresses, config.share_breakers) == (None, False, True)
    assert config.addresses["pncp"] == "https://pncp.gov.br"
    limits = {name: one.limit.limit for name, one in config.settings.upstreams.items() if one.limit}
    assert limits == {"pncp": "10/s", "pcp": "5/s"}


def test_config__retries_of_a_source__are_two_unless_configured(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text("[upstreams.pncp.retry]\nbase = 2\n[upstreams.pcp]\nretry = false\n")
    upstreams = ServiceConfig.load(path, {}).settings.upstreams
    pncp = upstreams["pncp"].retry
    assert isinstance(pncp, RetrySettings)
    assert (pncp.retries, pncp.base) == (2, 2)
    assert upstreams["pcp"].retry is False


def test_config__two_variables__select_redis_and_postgresql() -> None:
    environ = {"REDIS_URL": "redis://user:secret@cache/0", "DATABASE_URL": "postgresql://user:secret@db/name"}
    config = ServiceConfig.load(environ=environ)
    assert (config.state, config.database) == (environ["REDIS_URL"], environ["DATABASE_URL"])
    assert "secret" not in repr(config)


def test_config__file_and_variables__explains_the_origin_of_each_value(tmp_path: Path) -> None:
    environ = {
        "COMPORTA_SERVICE_PORT": "9001",
        "COMPORTA_SERVICE_SEARCH_STALE": "600",
        "COMPORTA_SERVICE_DATABASE": "sqlite:///ours.db",
        "COMPORTA_SERVICE_SHEETS_FOLDER": str(tmp_path),
        "COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES": "true",
        "COMPORTA_SERVICE_HOST": "",
        "DATABASE_URL": "mysql://user:other@db",
        "COMPORTA_UPSTREAM_PCP_MAX_WAIT": "2",
    }
    path = write_config(tmp_path)
    config = ServiceConfig.load(path, environ)
    settings = {one.name: (one.value, one.where) for one in config.explain()}
    assert settings["service.port"] == (9001, "COMPORTA_SERVICE_PORT")
    assert settings["service.search.fresh"] == (60, f"{path}:13")
    assert settings["service.search.stale"] == (600, "COMPORTA_SERVICE_SEARCH_STALE")
    assert settings["service.database"] == ("sqlite:///ours.db", "COMPORTA_SERVICE_DATABASE")
    assert settings["service.admin_token"] == ("***", f"{path}:9")
    assert settings["service.sheets_folder"] == (str(tmp_path), "COMPORTA_SERVICE_SHEETS_FOLDER")
    assert settings["service.batch.sheets"] == ("database", "default")
    assert settings["service.host"] == ("127.0.0.1", "default")
    assert settings["upstreams.pncp.timeout"] == (5, f"{path}:5")
    assert settings["upstreams.pncp.limit.limit"] == ("10/s", "default")
    assert settings["upstreams.pcp.max_wait"] == (2, "COMPORTA_UPSTREAM_PCP_MAX_WAIT")
    assert (config.trusted_proxies, config.allow_private_addresses) == (("10.0.0.0/8",), True)
    assert TOKEN not in repr(config)


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
            "at least 16 ASCII characters without a space, got a hidden value",
        ),
        ("[service]\nadmin_token = 'sixteen but blank'", "without a space, got a hidden value"),
        ("[service]\nadmin_token = 'sixteen-but-ação'", "ASCII characters"),
        ("[service]\ntrusted_proxies = '10.0.0.0/8'", "must be a list of networks such as"),
        ("[service]\ntrusted_proxies = ['nowhere']", ":2: [service]: trusted_proxies must be addresses"),
        (
            "[service]\nclient_limit = 'many'",
            ":2: [service]: client_limit cannot be parsed: limit must look like",
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
        (
            "[service]\ndatabase = 'postgresql://db/name'\n[service.batch]\nsheets = 'files'",
            ":4: [service.batch]: sheets must be 'database' or 'google' if the database is PostgreSQL, got",
        ),
        (
            "[service.batch]\nsheets = 'excel'",
            "sheets must be one of 'database', 'files', 'google', got 'excel'",
        ),
        ("[service]\npublic_url = 'example.org'", "public_url must be a URL such as 'https://host/path'"),
        (
            "[service]\npublic_url = 'https://me:secret@example.org'",
            ":2: [service]: public_url must be a URL such as 'https://host/path' without user, query and",
        ),
        ("[service]\npublic_url = 'https://example.org/?a=b'", "without user, query and fragment, got"),
        ("[service]\npublic_url = 'https:///path'", "without user, query and fragment, got"),
        ("service = 3", ":1: service must be a table, got 3"),
        ("[service]\nsearch = 3", "[service.search] must be a table, got 3"),
        ("upstreams = 3", ":1: [upstreams.pncp] must be a table, got 3"),
    ],
)
def test_config__invalid_value__is_reported_with_its_location(
    text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        ServiceConfig.load(write_config(tmp_path, text), {})
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "short" not in str(caught.value)


def test_config__unknown_variable__is_reported() -> None:
    with pytest.raises(ValueError, match="COMPORTA_SERVICE_PRT must be one of 'COMPORTA_SERVICE_ACCESS_LOG'"):
        ServiceConfig.load(environ={"COMPORTA_SERVICE_PRT": "1"})


def test_config__library_without_service__ignores_database_url() -> None:
    from comporta.settings import load_settings  # noqa: PLC0415 - used only here

    config = load_settings(environ={"DATABASE_URL": "mysql://user:other@db"})
    assert (config.service.database, dict(config.upstreams)) == (None, {})


@async_test
async def test_breakers__sharing_disabled__are_local_to_the_worker(tmp_path: Path) -> None:
    async with run_service(tmp_path, USE_REDIS_CIRCUIT_BREAKER="false") as one:
        breaker = one.container.upstreams["pncp"].breaker
        assert breaker is not None
        assert breaker.store is not one.container.store
        await breaker.record_failure("no answer")
        health = (await one.client.get("/v1/health")).json()
        ordinary = service_config(tmp_path)
    assert health["pncp_circuit_breaker"]["failures"] == 1
    assert ordinary.share_breakers


@async_test
async def test_app__database_unreachable__starts_anyway(tmp_path: Path) -> None:
    (tmp_path / "service.db").mkdir()
    async with run_service(tmp_path) as service:
        reply = await service.client.get("/v1/health")
    assert (reply.status_code, reply.json()["database"]["status"]) == (503, "fail")


@async_test
async def test_app__invalid_store_url__does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"state must start|shared:// takes memory"):
        async with run_service(tmp_path, COMPORTA_STATE="shared://name?colour=red"):
            pass


def test_app__without_a_config__reads_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPORTA_CONFIG", write_config(tmp_path))
    assert create_app().state.config.port == 9000


def test_config_check__configured__shows_values_but_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_config(tmp_path)
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:secret@db/name")
    ran = CliRunner().invoke(comporta, ["config", "check", path, "--json"])
    shown = {one["name"]: one["value"] for one in json.loads(ran.stdout)}
    assert ran.exit_code == 0
    assert (shown["service.port"], shown["service.database"]) == (9000, "postgresql://***@db/name")
    assert TOKEN not in ran.output
    table = CliRunner().invoke(comporta, ["config", "check", path, "--all"])
    assert (table.exit_code, "close_seconds" in table.output) == (0, True)


def test_config_check__empty__says_so() -> None:
    ran = CliRunner().invoke(comporta, ["config", "check"])
    assert ran.output == "All values are defaults. To show them, add --all.\n"


@pytest.mark.parametrize("command", [["config", "check"], ["serve", "--config"]])
@pytest.mark.parametrize(
    ("text", "message"), [("[service]\nport = 'x'", "port must be"), (None, "No such file or directory")]
)
def test_command__invalid_configuration__is_a_usage_error(
    command: list[str], text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    path = str(tmp_path / "none.toml") if text is None else write_config(tmp_path, text)
    ran = CliRunner().invoke(comporta, [*command, path])
    assert ran.exit_code == 2
    assert message in ran.output


@async_test
async def test_app__store_unreachable__starts_in_fallback(tmp_path: Path) -> None:
    async with run_service(tmp_path, COMPORTA_STATE="redis://127.0.0.1:1/0") as service:
        health = (await service.client.get("/v1/health")).json()
    assert (health["status"], health["state"]["status"]) == ("warn", "warn")


@async_test
async def test_app__store_rejects_the_password__does_not_start(tmp_path: Path) -> None:
    with Server(password="secret") as server:  # noqa: S106 - of this test only
        url = f"redis://:wrong@127.0.0.1:{server.port}/0?timeout=5"
        with pytest.raises(StateAuthError) as caught:
            async with run_service(tmp_path, COMPORTA_STATE=url):
                pass
    assert "wrong@" not in str(caught.value)


@async_test
async def test_app__close_times_out__publishes_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_end() -> None:
        await asyncio.Event().wait()

    async with run_service(tmp_path) as service:
        monkeypatch.setattr(container, "CLOSE_SECONDS", 0.05)
        monkeypatch.setattr(service.container.upstreams, "aclose", never_end)
    assert events.latest_events()[-1].kind == "service_close"


def test_serve__address_not_available__fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    ran = CliRunner().invoke(comporta, ["serve", "--host", "203.0.113.1", "--port", "0", "--open"])
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: cannot listen on 203.0.113.1:0: ")


def test_serve__without_the_extra__says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comporta.service.supervisor", None)
    ran = CliRunner().invoke(comporta, ["serve"])
    assert ran.exit_code == 1
    assert "pip install 'comporta[service]'" in ran.output


def test_serve__source_on_a_private_network__fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {**os.environ, "COMPORTA_SERVICE_ADDRESSES_PNCP": "http://127.0.0.1:9"}
    )
    ran = CliRunner().invoke(comporta, ["serve", "--port", "0"])
    assert (ran.exit_code, len(ran.output.splitlines())) == (1, 1)
    assert ran.output.startswith("Error: addresses.pncp: 127.0.0.1 must be on the public network")


def test_serve__database_directory_missing__fails_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/none/service.db"
    monkeypatch.setattr(os, "environ", {**os.environ, "COMPORTA_SERVICE_DATABASE": url})
    ran = CliRunner().invoke(comporta, ["serve", "--port", "0"])
    assert (ran.exit_code, len(ran.output.splitlines())) == (1, 1)
    start = f"Error: the directory of the database {tmp_path}/none/service.db does not exist"
    assert ran.output.startswith(start)


def test_serve__processor_in_the_current_directory__is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reports_of_a_shop.py").write_text("def analyse(account):\n    return account\n")
    (tmp_path / "comporta.toml").write_text('[service.batch]\nprocessor = "reports_of_a_shop:analyse"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    processors = []

    def serving(config: ServiceConfig, _: object) -> None:
        processors.append(load_processor(str(config.batch.processor)))

    monkeypatch.setattr("comporta.service.supervisor.serve", serving)
    ran = CliRunner().invoke(comporta, ["serve", "--config", "comporta.toml"])
    assert ran.exit_code == 0, ran.output
    assert [each("1001") for each in processors] == ["1001"]
