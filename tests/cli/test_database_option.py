"""Commands find the database as ``comporta serve`` does: option, environment, settings file, default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.cli_runner import run, run_json, run_process
from tests.cli.sample_fleet import fleet

from comporta.settings import CONFIG_VARIABLE, service_variable

DATABASE_VARIABLES = ("DATABASE_URL", CONFIG_VARIABLE, service_variable("database"))


@pytest.fixture(autouse=True)
def _empty_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DATABASE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    """Return a settings file whose database exists and has all tables."""
    path = tmp_path / "comporta.toml"
    path.write_text(f'[service]\ndatabase = "{new_database(tmp_path, "configured")}"\n')
    return path


def new_database(folder: Path, name: str) -> str:
    url = f"sqlite:///{folder}/{name}.db"
    assert run("db", "migrate", url).exit_code == 0
    return url


def token_names(url: str) -> list[str]:
    return [row["name"] for row in run_json("tokens", "list", "--database", url)]


def test_tokens__settings_file_with_a_database__use_it(
    settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", new_database(tmp_path, "other"))
    configured = f"sqlite:///{tmp_path}/configured.db"
    added = run("tokens", "add", "ana", "--config", str(settings_file))
    assert added.exit_code == 0, added.output
    monkeypatch.setenv(CONFIG_VARIABLE, str(settings_file))
    assert run("tokens", "add", "bob").exit_code == 0
    assert run("tokens", "revoke", "ana").exit_code == 0
    assert token_names(configured) == [row["name"] for row in run_json("tokens", "list")] == ["ana", "bob"]


def test_tokens__variable_and_option__override_the_settings_file(
    settings_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(settings_file))
    variable, option = new_database(tmp_path, "variable"), new_database(tmp_path, "option")
    monkeypatch.setenv(service_variable("database"), variable)
    assert run("tokens", "add", "ana").exit_code == 0
    assert run("tokens", "add", "bob", "--database", option).exit_code == 0
    assert (token_names(variable), token_names(option)) == (["ana"], ["bob"])
    assert token_names(f"sqlite:///{tmp_path}/configured.db") == []


def test_tokens__no_settings__use_database_url_or_the_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("db", "migrate").exit_code == 0
    assert run("tokens", "add", "ana").exit_code == 0
    assert token_names(f"sqlite:///{tmp_path}/data/comporta/comporta.db") == ["ana"]
    monkeypatch.setenv("DATABASE_URL", new_database(tmp_path, "other"))
    assert run_json("tokens", "list") == []


@pytest.mark.parametrize(
    "words", [["batch", "allow", "ana"], ["cache", "list"], ["runs", "list"], ["db", "status"]]
)
def test_command__settings_file_with_a_database__uses_it(words: list[str], settings_file: Path) -> None:
    ran = run_process(*words, "--config", str(settings_file))
    assert ran.returncode == 0, ran.stderr


def test_migrate__settings_file_with_a_database__migrates_it(tmp_path: Path) -> None:
    file = tmp_path / "comporta.toml"
    file.write_text(f'[service]\ndatabase = "sqlite:///{tmp_path}/new.db"\n')
    assert run("db", "migrate", "--config", str(file)).exit_code == 0
    assert run("db", "status", f"sqlite:///{tmp_path}/new.db").exit_code == 0


def test_top__settings_file_with_a_database__shows_its_jobs(settings_file: Path, shared_name: str) -> None:
    with fleet(f"shared://{shared_name}"):
        document = json.loads(
            run("top", f"shared://{shared_name}", "--config", str(settings_file), "--json").stdout
        )
    assert (document["database"]["status"], document["jobs"]) == ("ok", [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[service]\ndatabase = "mysql://db"\n', "[service]: database must be a URL such as"),
        ("[service]\nworkers = 0\n", "[service]: workers must be"),
        (None, "comporta.toml: No such file or directory"),
    ],
)
def test_command__wrong_settings_file__is_a_usage_error(
    text: str | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "comporta.toml"
    if text is not None:
        file.write_text(text)
    ran = run("tokens", "list", "--config", str(file))
    assert ran.exit_code == 2
    assert problem in ran.output


def test_command__wrong_settings_file_and_a_database__ignores_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "absent.toml"))
    assert token_names(new_database(tmp_path, "option")) == []
