"""Configuration: what is understood, what is refused, and who overrides whom."""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from comporta import LimitStrategy, settings
from comporta.limits import config
from comporta.settings import STRATEGIES, LimitSettings, Settings, limit_variable, load_settings

FILE = """
state = "redis://localhost/0"

[limits.default]
limit = "10/s"
strategy = "leaky_bucket"

[limits.search-all]
rate = 2.5
capacity = 5

[limits.login]
capacity = 5
window = 900
strategy = "fixed_window"

[namespaces]
search = "search-all"
"an odd:one" = "login"
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "comporta.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_strategies__here_and_in_limits__are_the_same() -> None:
    assert list(STRATEGIES) == [strategy.value for strategy in LimitStrategy]
    assert settings.FALLBACKS == config.FALLBACKS


def test_load__nothing_anywhere__is_empty() -> None:
    assert load_settings(environ={}) == Settings()


def test_load__file__is_read_whole(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, FILE), {})
    assert settings == Settings(
        "redis://localhost/0",
        MappingProxyType(
            {
                "default": LimitSettings("10/s", strategy="leaky_bucket"),
                "search-all": LimitSettings(rate=2.5, capacity=5),
                "login": LimitSettings(capacity=5, window=900, strategy="fixed_window"),
            }
        ),
        MappingProxyType({"search": "search-all", "an odd:one": "login"}),
    )


def test_load__file_named_by_the_environment__is_read(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    assert load_settings(environ={"COMPORTA_CONFIG": str(path)}) == load_settings(str(path), {})


def test_load__environment_left_out__is_the_one_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPORTA_CONFIG", raising=False)
    monkeypatch.setenv("COMPORTA_LIMIT_FROM_PROCESS", "7/s")
    assert load_settings().limits["from_process"] == LimitSettings("7/s")


def test_load__variable_for_a_limit__overrides_it_and_keeps_its_strategy(tmp_path: Path) -> None:
    environ = {
        "COMPORTA_LIMIT_DEFAULT": "1/s",
        "COMPORTA_LIMIT_SEARCH_ALL": "50/s",
        "COMPORTA_LIMIT_LOGIN": "",
    }
    settings = load_settings(written(tmp_path, FILE), environ)
    assert settings.limits["default"] == LimitSettings("1/s", strategy="leaky_bucket")
    assert settings.limits["search-all"] == LimitSettings("50/s")
    assert settings.limits["search-all"].source == "COMPORTA_LIMIT_SEARCH_ALL"
    assert settings.limits["login"].capacity == 5


def test_load__lease__is_read_and_kept_when_the_environment_overrides_the_limit(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[limits.a]\nlimit = "1/s"\nlease = true\n[limits.b]\nlimit = "2/s"\nlease = "20ms"'
    )
    settings = load_settings(path, {"COMPORTA_LIMIT_B": "3/s", "COMPORTA_LIMIT_C": "4/s"})
    assert dict(settings.limits) == {
        "a": LimitSettings("1/s", lease=True),
        "b": LimitSettings("3/s", lease="20ms"),
        "c": LimitSettings("4/s"),
    }


def test_load__variable_that_fits_two_limits__is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, '[limits."a.b"]\nlimit = "1/s"\n[limits.a-b]\nlimit = "2/s"\n')
    with pytest.raises(ValueError, match=r"^COMPORTA_LIMIT_A_B must mean one limit, got 'a\.b', 'a-b'$"):
        load_settings(path, {"COMPORTA_LIMIT_A_B": "3/s"})


@pytest.mark.parametrize("name", ["", "É"])
def test_load__variable_with_an_impossible_name__is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^COMPORTA_LIMIT_{name}: the name of a limit must be 1 to 100 of"):
        load_settings(environ={f"COMPORTA_LIMIT_{name}": "3/s"})


def test_limit_variable__name__is_in_capitals() -> None:
    assert limit_variable("search-all.v2") == "COMPORTA_LIMIT_SEARCH_ALL_V2"


@pytest.mark.parametrize(
    ("file", "environ", "state", "source"),
    [
        (
            "redis://file",
            {"COMPORTA_STATE": "redis://ours", "REDIS_URL": "redis://theirs"},
            "ours",
            "COMPORTA_STATE",
        ),
        (
            "redis://file",
            {"COMPORTA_STATE": "", "REDIS_URL": "redis://theirs"},
            "file",
            "comporta.toml: state",
        ),
        (None, {"REDIS_URL": "redis://theirs"}, "theirs", "REDIS_URL"),
    ],
)
def test_state__several_say_it__follows_the_order(
    file: str | None, environ: dict[str, str], state: str, source: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f'state = "{file}"' if file else "")
    settings = load_settings(path, environ)
    assert settings.state == f"redis://{state}"
    assert settings.state_source.endswith(source)


def test_settings__shown__keep_the_password_to_themselves() -> None:
    assert "secret" not in repr(Settings("redis://:secret@host"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits = [", r"Invalid value \(at end of document\)"),
        ("a = 1\n= 2\n", r"Invalid .* \(at line 2, column 1\)"),
        (b"state = '\xff'", "'utf-8' codec can't decode byte 0xff"),
        ("stat = 1", "fields must be among 'state', 'limits', 'namespaces', got 'stat'"),
        ("state = 1", "state must be a URL such as 'redis://localhost', got 1"),
        ("state = ''", "state must be a URL such as 'redis://localhost', got ''"),
        ("limits = 1", "limits must be a table, got 1"),
        ("namespaces = 1", "namespaces must be a table, got 1"),
        ("limits.a = '1/s'", r"\[limits.a\] must be a table, got '1/s'"),
        (
            "[limits.a]\nsource = 'x'",
            r"\[limits.a\]: fields must be among 'limit', 'rate', .*, 'lease', got 'source'",
        ),
        ("[limits.a]\nlimit = 1", r"\[limits.a\]: limit must be text such as '10/s', got 1"),
        ("[limits.a]\nrate = '1'", r"\[limits.a\]: rate must be a number per second, got '1'"),
        ("[limits.a]\ncapacity = 1.5", r"\[limits.a\]: capacity must be a whole number, got 1.5"),
        ("[limits.a]\ncapacity = true", r"\[limits.a\]: capacity must be a whole number, got True"),
        (
            "[limits.a]\nwindow = 1979-05-27",
            r"\[limits.a\]: window must be a number of seconds, got datetime",
        ),
        (
            "[limits.a]\nstrategy = 'tokens'",
            r"\[limits.a\]: strategy must be one of 'token_bucket', .*, got 'tokens'",
        ),
        ("[limits.a]\nlease = [1]", r"\[limits.a\]: lease must be true, false, text such as .*, got \[1\]"),
        ("[limits.a]\nstrategy = ['fixed_window']", r"\[limits.a\]: strategy must be one of .*, got \["),
        (
            "[limits.a]\nlimit = '1/s'\nrate = 1\nwindow = 2",
            r"\[limits.a\]: limit says it all: leave out 'rate', 'window'",
        ),
        (
            "[limits.a]\nrate = 1",
            r"\[limits.a\]: limit, or for token_bucket 'capacity', 'rate' must be given, got 'rate'",
        ),
        (
            "[limits.a]\nstrategy = 'fixed_window'",
            r"\[limits.a\]: limit, or for fixed_window 'capacity', 'window' must be given, got none",
        ),
        (
            "[limits.'a b']\nlimit = '1/s'",
            r"\[limits.a b\]: the name of a limit must be 1 to 100 of A-Z a-z 0-9 _ . -, got 'a b'",
        ),
        (
            "[limits.a]\nlimit = '1/s'\n[namespaces]\nx = 'b'",
            r"\[namespaces\]: 'x' must be one of the limits, 'a', got 'b'",
        ),
        ("[namespaces]\nx = ['b']", r"\[namespaces\]: 'x' must be one of the limits, none, got \['b'\]"),
        (
            "[limits.a]\nlimit = '1/s'\n[namespaces]\n'' = 'a'",
            r"\[namespaces\]: a namespace must not be empty, got ''",
        ),
    ],
)
def test_load__mistake_in_the_file__names_file_place_and_value(
    text: str | bytes, message: str, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: {message}"):
        load_settings(path, {})


def test_load__file_missing__is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_settings__made_in_the_program__are_checked_alike() -> None:
    wrong: dict[str, Any] = {"capacity": "5", "rate": 1}
    with pytest.raises(ValueError, match=r"^limit: capacity must be a whole number, got '5'$"):
        LimitSettings(**wrong)
    with pytest.raises(ValueError, match=r"^settings: \[namespaces\]: 'x' must be one of the limits"):
        Settings(namespaces={"x": "y"})


def test_fallback__in_a_table__is_checked_and_stays_when_the_environment_overrides(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x: fallback must be one of 'share', 'open', 'closed', got 'shut'"):
        LimitSettings(limit="1/s", fallback="shut", source="x")
    path = tmp_path / "comporta.toml"
    path.write_text('[limits.search]\nlimit = "1/s"\nfallback = "closed"\n')
    loaded = load_settings(path, {"COMPORTA_LIMIT_SEARCH": "5/s"})
    assert loaded.limits["search"].fallback == "closed"
    assert loaded.limits["search"].limit == "5/s"
