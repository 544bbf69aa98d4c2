"""Loading settings: files, variables and their precedence."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from comporta import RateLimitManager, settings
from comporta.limits import config
from comporta.settings import (
    BreakerSettings,
    DegradationSettings,
    LimitSettings,
    RetrySettings,
    Settings,
    UpstreamSettings,
    limit_variable,
    load_settings,
)

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


def write_file(directory: Path, text: str | bytes) -> Path:
    path = directory / "comporta.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_fallbacks__in_settings_and_in_limits__are_the_same() -> None:
    assert settings.FALLBACKS == config.FALLBACKS


def test_load__name_of_a_registered_strategy__is_accepted(tmp_path: Path) -> None:
    text = "[limits.a]\ncapacity = 5\nrate = 1\nstrategy = 'my_strategy'\n"
    assert load_settings(write_file(tmp_path, text), {}).limits["a"].strategy == "my_strategy"


def test_load__no_file_and_no_variables__is_empty() -> None:
    assert load_settings(environ={}) == Settings()


def test_load__file__has_all_its_values(tmp_path: Path) -> None:
    settings = load_settings(write_file(tmp_path, FILE), {})
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
    path = write_file(tmp_path, FILE)
    assert load_settings(environ={"COMPORTA_CONFIG": str(path)}) == load_settings(str(path), {})


def test_load__no_environ_argument__uses_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPORTA_CONFIG", raising=False)
    monkeypatch.setenv("COMPORTA_LIMIT_FROM_PROCESS", "7/s")
    assert load_settings().limits["from_process"] == LimitSettings("7/s")


def test_load__variable_for_a_limit__overrides_it_and_keeps_its_strategy(tmp_path: Path) -> None:
    environ = {
        "COMPORTA_LIMIT_DEFAULT": "1/s",
        "COMPORTA_LIMIT_SEARCH_ALL": "50/s",
        "COMPORTA_LIMIT_LOGIN": "",
    }
    settings = load_settings(write_file(tmp_path, FILE), environ)
    assert settings.limits["default"] == LimitSettings("1/s", strategy="leaky_bucket")
    assert settings.limits["search-all"] == LimitSettings("50/s")
    assert settings.limits["search-all"].origin == "COMPORTA_LIMIT_SEARCH_ALL"
    assert settings.limits["login"].capacity == 5


def test_load__variable_for_a_limit__keeps_its_lease(tmp_path: Path) -> None:
    path = write_file(
        tmp_path, '[limits.a]\nlimit = "1/s"\nlease = true\n[limits.b]\nlimit = "2/s"\nlease = "20ms"'
    )
    settings = load_settings(path, {"COMPORTA_LIMIT_B": "3/s", "COMPORTA_LIMIT_C": "4/s"})
    assert dict(settings.limits) == {
        "a": LimitSettings("1/s", lease=True),
        "b": LimitSettings("3/s", lease="20ms"),
        "c": LimitSettings("4/s"),
    }


def test_load__variable_that_matches_two_limits__is_an_error(tmp_path: Path) -> None:
    path = write_file(tmp_path, '[limits."a.b"]\nlimit = "1/s"\n[limits.a-b]\nlimit = "2/s"\n')
    with pytest.raises(ValueError, match=r"^COMPORTA_LIMIT_A_B must match one limit, got 'a\.b', 'a-b'$"):
        load_settings(path, {"COMPORTA_LIMIT_A_B": "3/s"})


@pytest.mark.parametrize("name", ["", "É"])
def test_load__variable_with_an_invalid_name__is_an_error_that_names_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"^COMPORTA_LIMIT_{name}: the name of a limit must be 1 to 100 of"):
        load_settings(environ={f"COMPORTA_LIMIT_{name}": "3/s"})


def test_limit_variable__name__is_in_upper_case() -> None:
    assert limit_variable("search-all.v2") == "COMPORTA_LIMIT_SEARCH_ALL_V2"


@pytest.mark.parametrize(
    ("file", "environ", "state", "origin"),
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
            "comporta.toml:1",
        ),
        (None, {"REDIS_URL": "redis://theirs"}, "theirs", "REDIS_URL"),
    ],
)
def test_state__several_origins__follows_the_precedence(
    file: str | None, environ: dict[str, str], state: str, origin: str, tmp_path: Path
) -> None:
    path = write_file(tmp_path, f'state = "{file}"' if file else "")
    settings = load_settings(path, environ)
    assert settings.state == f"redis://{state}"
    assert settings.state_origin.endswith(origin)


def test_settings__repr__does_not_show_the_password() -> None:
    assert "secret" not in repr(Settings("redis://:secret@host"))


def test_load__missing_file__is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_settings__created_in_a_program__are_checked_too() -> None:
    wrong: dict[str, Any] = {"capacity": "5", "rate": 1}
    with pytest.raises(ValueError, match=r"^limit: capacity must be a whole number, got '5'$"):
        LimitSettings(**wrong)
    with pytest.raises(ValueError, match=r"^settings: \[namespaces\]: 'x' must be one of the limits"):
        Settings(namespaces={"x": "y"})


def test_fallback__variable_for_the_limit__keeps_the_fallback(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x: fallback must be one of 'share', 'open', 'closed', got 'shut'"):
        LimitSettings(limit="1/s", fallback="shut", origin="x")
    path = tmp_path / "comporta.toml"
    path.write_text('[limits.search]\nlimit = "1/s"\nfallback = "closed"\n')
    loaded = load_settings(path, {"COMPORTA_LIMIT_SEARCH": "5/s"})
    assert loaded.limits["search"].fallback == "closed"
    assert loaded.limits["search"].limit == "5/s"


# breakers and upstreams -----------------------------------------------------------------------------------

UPSTREAMS = """
[breakers.pcp]
threshold = 30
cooldown_seconds = 120

[upstreams.pncp]
limit = "10/s"
fallback = "closed"
lease = "20ms"
max_wait = 5
max_concurrent = 10
permit_ttl = 60
timeout = 30
pause_max = 300
count = "series"
[upstreams.pncp.breaker]
threshold = false
failure_ratio = 0.5
[upstreams.pncp.retry]
retries = 3
jitter = [0, 0.5]
deadline = false
[upstreams.pncp.degradation]
drop = 0.1
rule = "accepted"

[upstreams.pcp]
limit = {capacity = 5, window = 900, strategy = "fixed_window"}
timeout = false
retry = false
degradation = true

[upstreams.third]
breaker = "pcp"

[upstreams.none]
breaker = false
"""


def test_load__upstreams__have_all_their_values(tmp_path: Path) -> None:
    loaded = load_settings(write_file(tmp_path, UPSTREAMS), {})
    assert dict(loaded.breakers) == {
        "pcp": BreakerSettings(30, 120),
        "pncp": BreakerSettings(False, failure_ratio=0.5),
    }
    assert dict(loaded.upstreams) == {
        "pncp": UpstreamSettings(
            LimitSettings("10/s", fallback="closed", lease="20ms"),
            max_wait=5,
            max_concurrent=10,
            permit_ttl=60,
            timeout=30,
            pause_max=300,
            count="series",
            breaker="pncp",
            retry=RetrySettings(3, jitter=(0, 0.5), deadline=False),
            degradation=DegradationSettings(0.1, rule="accepted"),
        ),
        "pcp": UpstreamSettings(
            LimitSettings(capacity=5, window=900, strategy="fixed_window"),
            timeout=False,
            retry=False,
            degradation=True,
        ),
        "third": UpstreamSettings(breaker="pcp"),
        "none": UpstreamSettings(breaker=False),
    }


def test_breaker_of__upstream__is_its_own_unless_it_names_another(tmp_path: Path) -> None:
    loaded = load_settings(write_file(tmp_path, UPSTREAMS), {})
    assert loaded.breaker_of("pncp") == ("pncp", loaded.breakers["pncp"])
    assert loaded.breaker_of("pcp") == ("pcp", loaded.breakers["pcp"])
    assert loaded.breaker_of("third") == ("pcp", loaded.breakers["pcp"])
    assert loaded.breaker_of("none") is None
    assert Settings(upstreams={"a": UpstreamSettings()}).breaker_of("a") == ("a", BreakerSettings())


def test_breaker__in_an_upstream_and_among_the_breakers__is_one(tmp_path: Path) -> None:
    text = "[breakers.a]\nthreshold = 5\nquorum = 2\n[upstreams.a.breaker]\nthreshold = 5\nprobes = 3\n"
    loaded = load_settings(write_file(tmp_path, text), {})
    assert loaded.breaker_of("a") == ("a", BreakerSettings(5, quorum=2, probes=3))


def test_keyword_arguments__fields_that_are_set__have_none_for_false_numbers(tmp_path: Path) -> None:
    loaded = load_settings(write_file(tmp_path, UPSTREAMS), {})
    assert loaded.breakers["pncp"].keyword_arguments() == {"threshold": None, "failure_ratio": 0.5}
    assert loaded.upstreams["pcp"].keyword_arguments()["timeout"] is None
    assert loaded.upstreams["pcp"].keyword_arguments()["retry"] is False
    retry = loaded.upstreams["pncp"].retry
    assert isinstance(retry, RetrySettings)
    assert retry.keyword_arguments() == {"retries": 3, "jitter": (0, 0.5), "deadline": None}


def test_error_with_origin__error_of_a_builder__has_the_line_of_its_field(tmp_path: Path) -> None:
    path = write_file(tmp_path, UPSTREAMS)
    breaker = load_settings(path, {}).breakers["pcp"]
    table = f"{path}:2: [breakers.pcp]"
    for error, where in [
        ("cooldown_seconds must be at most 60, got 120", f"{path}:4: [breakers.pcp]"),
        ("a rule is missing", table),
        ("", table),
    ]:
        assert str(breaker.error_with_origin(ValueError(error))) == f"{where}: {error}"


def test_manager__invalid_limit__is_an_error_with_its_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, "[limits.a]\nstrategy = 'leaky_bucket'\nlimit = 'lots'\n")
    with pytest.raises(ValueError, match=r"comporta\.toml:3: \[limits\.a\]: limit must look like '10/s'"):
        RateLimitManager.from_file(path)


def test_load__windows_line_breaks__count_once(tmp_path: Path) -> None:
    path = write_file(tmp_path, b"[limits.a]\r\n\r\nlimit = '1/s'\r\n")
    assert load_settings(path, {}).limits["a"].origin_of("limit") == f"{path}:3: [limits.a]"
