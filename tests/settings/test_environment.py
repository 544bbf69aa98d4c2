"""Environment variables: their targets, their precedence, and those that are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from comporta.settings import (
    BreakerSettings,
    DegradationSettings,
    LimitSettings,
    RetrySettings,
    Settings,
    UpstreamSettings,
    breaker_variable,
    load_settings,
    upstream_variable,
)

FILE = """
[limits.search]
rate = 2.5
capacity = 5
[breakers.pncp]
threshold = 50
cooldown_seconds = 120
[upstreams.pncp]
limit = {rate = 5, capacity = 5, strategy = "leaky_bucket"}
timeout = 30
[upstreams.pncp.retry]
retries = 3
base = 1
[upstreams.my-api]
limit = "10/s"
retry = false
breaker = false
"""


def load(directory: Path, environ: dict[str, str], text: str = FILE) -> Settings:
    path = directory / "f.toml"
    path.write_text(text)
    return load_settings(path, environ)


def test_upstream__variables__override_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        {
            "COMPORTA_UPSTREAM_PNCP_LIMIT": "20/s",
            "COMPORTA_UPSTREAM_PNCP_FALLBACK": "open",
            "COMPORTA_UPSTREAM_PNCP_LEASE": "0.02",
            "COMPORTA_UPSTREAM_PNCP_BATCH_HEADROOM": "8",
            "COMPORTA_UPSTREAM_PNCP_NORMAL_HEADROOM": "2",
            "COMPORTA_UPSTREAM_PNCP_MAX_WAIT": "2.5",
            "COMPORTA_UPSTREAM_PNCP_MAX_CONCURRENT": "7",
            "COMPORTA_UPSTREAM_PNCP_TIMEOUT": "false",
            "COMPORTA_UPSTREAM_PNCP_COUNT": "series",
            "COMPORTA_UPSTREAM_PNCP_RETRY": "true",
            "COMPORTA_UPSTREAM_PNCP_RETRY_RETRIES": "5",
            "COMPORTA_UPSTREAM_PNCP_RETRY_JITTER": "0, 0.1",
            "COMPORTA_UPSTREAM_PNCP_DEGRADATION": "false",
            "COMPORTA_UPSTREAM_PNCP_PAUSE_MAX": "",
        },
    )
    assert settings.upstreams["pncp"] == UpstreamSettings(
        LimitSettings(
            "20/s", strategy="leaky_bucket", fallback="open", lease=0.02, batch_headroom=8, normal_headroom=2
        ),
        max_wait=2.5,
        max_concurrent=7,
        timeout=False,
        count="series",
        retry=RetrySettings(5, 1, jitter=(0, 0.1)),
        degradation=False,
    )
    assert settings.upstreams["pncp"].origin_of("timeout") == "COMPORTA_UPSTREAM_PNCP_TIMEOUT"


def test_upstream__policy_switched_off_in_the_file__is_switched_on_by_a_variable(tmp_path: Path) -> None:
    environ = {
        "COMPORTA_UPSTREAM_MY_API_RETRY_BASE": "1",
        "COMPORTA_UPSTREAM_MY_API_DEGRADATION_RULE": "steps",
        "COMPORTA_UPSTREAM_MY_API_BREAKER": "pncp",
        "COMPORTA_UPSTREAM_MY_API_LEASE": "true",
    }
    settings = load(tmp_path, environ)
    assert settings.upstreams["my-api"] == UpstreamSettings(
        LimitSettings("10/s", lease=True),
        breaker="pncp",
        retry=RetrySettings(base=1),
        degradation=DegradationSettings(rule="steps"),
    )


def test_upstream__only_in_variables__is_created_if_it_has_a_limit() -> None:
    environ = {"COMPORTA_UPSTREAM_NEW_ONE_LIMIT": "5/s", "COMPORTA_UPSTREAM_NEW_ONE_RETRY_JITTER": "full"}
    settings = load_settings(environ=environ)
    assert dict(settings.upstreams) == {
        "new_one": UpstreamSettings(LimitSettings("5/s"), retry=RetrySettings(jitter="full"))
    }
    assert settings.upstreams["new_one"].origin == "COMPORTA_UPSTREAM_NEW_ONE_LIMIT"


@pytest.mark.parametrize(
    "environ",
    [
        {"COMPORTA_BREAKER_PNCP_THRESHOLD": "20", "COMPORTA_BREAKER_PNCP_COOLDOWN_SECONDS": "60.5"},
        {"PNCP_CIRCUIT_BREAKER_THRESHOLD": "20", "PNCP_CIRCUIT_BREAKER_COOLDOWN": "60.5"},
        {
            "PNCP_CIRCUIT_BREAKER_THRESHOLD": "20",
            "COMPORTA_BREAKER_PNCP_THRESHOLD": "20",
            "COMPORTA_BREAKER_PNCP_COOLDOWN_SECONDS": "60.5",
        },
    ],
)
def test_breaker__variables__override_the_file(environ: dict[str, str], tmp_path: Path) -> None:
    assert load(tmp_path, environ).breakers["pncp"] == BreakerSettings(20, 60.5)


def test_breaker__of_an_upstream__is_matched_by_the_name_of_the_upstream(tmp_path: Path) -> None:
    settings = load(tmp_path, {"MY_API_CIRCUIT_BREAKER_COOLDOWN": "5"}, "[upstreams.my-api]\n")
    assert settings.breaker_of("my-api") == ("my-api", BreakerSettings(cooldown_seconds=5))


def test_breaker__not_in_the_file__is_created_by_a_variable() -> None:
    environ = {"ANY_CIRCUIT_BREAKER_THRESHOLD": "3", "COMPORTA_BREAKER_OTHER_QUORUM": "2"}
    settings = load_settings(environ=environ)
    assert dict(settings.breakers) == {"any": BreakerSettings(3), "other": BreakerSettings(quorum=2)}
    assert settings.breakers["any"].origin == "ANY_CIRCUIT_BREAKER_THRESHOLD"


@pytest.mark.parametrize("text", ["1", "true", "TRUE"])
def test_variable__of_a_boolean__may_be_1_or_true(text: str) -> None:
    names = ("OPEN", "ALLOW_PRIVATE_ADDRESSES", "ACCESS_LOG")
    environ = {f"COMPORTA_SERVICE_{name}": text for name in names}
    service = load_settings(environ=environ, service=True).service
    assert service.open is service.allow_private_addresses is service.access_log is True


def test_variable__name_and_field__are_in_upper_case() -> None:
    assert upstream_variable("my-api", "retry.base") == "COMPORTA_UPSTREAM_MY_API_RETRY_BASE"
    assert breaker_variable("a.b", "cooldown_seconds") == "COMPORTA_BREAKER_A_B_COOLDOWN_SECONDS"


UPSTREAM = "name one of the upstreams, 'pncp', 'my-api', or COMPORTA_UPSTREAM_PNPC_LIMIT must be set too"
BREAKER_FIELDS = (
    "COMPORTA_BREAKER_<NAME>_<FIELD> with one of the fields THRESHOLD, COOLDOWN_SECONDS, COOLDOWN_FACTOR, "
    "COOLDOWN_MAX_SECONDS, FAILURE_RATIO, SLOW_SECONDS, SLOW_RATIO, WINDOW_SECONDS, MINIMUM_CALLS, QUORUM, "
    "LOCAL_THRESHOLD, PROBES, PROBES_AT_ONCE, PROBE_SECONDS, RAMP_STEPS, RAMP_SECONDS, STALENESS, SHADOW"
)
UPSTREAM_FIELDS = (
    "COMPORTA_UPSTREAM_<NAME>_<FIELD> with one of the fields LIMIT, "
    "MAX_WAIT, MAX_CONCURRENT, PERMIT_TTL, TIMEOUT, PAUSE_MAX, COUNT, BREAKER, RETRY, DEGRADATION, "
    "RETRY_RETRIES, RETRY_BASE, RETRY_FACTOR, RETRY_JITTER, RETRY_MIN_DELAY, RETRY_MAX_DELAY, "
    "RETRY_DEADLINE, "
    "RETRY_BUDGET_RATIO, RETRY_BUDGET_LEAST, DEGRADATION_DROP, DEGRADATION_FLOOR, DEGRADATION_CLIMB, "
    "DEGRADATION_EVERY, DEGRADATION_RULE, DEGRADATION_ROUND_TRIP, FALLBACK, LEASE, BATCH_HEADROOM, "
    "NORMAL_HEADROOM"
)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"COMPORTA_UPSTREAM_PNCP_TIMEOUT": "soon"},
            "COMPORTA_UPSTREAM_PNCP_TIMEOUT: timeout must be a number of seconds or false, got 'soon'",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_MAX_CONCURRENT": "0"},
            "COMPORTA_UPSTREAM_PNCP_MAX_CONCURRENT: max_concurrent must be at least 1, got 0",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_RETRY_RETRIES": "-1"},
            "COMPORTA_UPSTREAM_PNCP_RETRY_RETRIES: retries must be at least 0, got -1",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_RETRY": "5"},
            "COMPORTA_UPSTREAM_PNCP_RETRY: retry must be a table, true or false, got '5'",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_BREAKER": "nope"},
            "COMPORTA_UPSTREAM_PNCP_BREAKER: breaker must be one of the breakers, 'pncp', got 'nope'",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_FALLBACK": "shut"},
            "COMPORTA_UPSTREAM_PNCP_FALLBACK: fallback must be one of 'share', 'open', 'closed', got 'shut'",
        ),
        (
            {"COMPORTA_UPSTREAM_PNCP_LIMT": "5/s"},
            f"COMPORTA_UPSTREAM_PNCP_LIMT must be {UPSTREAM_FIELDS}, got 'PNCP_LIMT'",
        ),
        (
            {"COMPORTA_UPSTREAM_PNPC_TIMEOUT": "5"},
            f"COMPORTA_UPSTREAM_PNPC_TIMEOUT must {UPSTREAM}, got 'pnpc'",
        ),
        (
            {"COMPORTA_UPSTREAM__LIMIT": "5/s"},
            "COMPORTA_UPSTREAM__LIMIT: the name of an upstream must be 1 to 100 of A-Z a-z 0-9 _ . -, got ''",
        ),
        (
            {"COMPORTA_UPSTREAM_X_RETRY": "false", "COMPORTA_UPSTREAM_X_RETRY_BASE": "2"},
            (
                "COMPORTA_UPSTREAM_X_RETRY_BASE must not be set together with "
                "COMPORTA_UPSTREAM_X_RETRY=false, got 2"
            ),
        ),
        (
            {"COMPORTA_BREAKER_THRESHOLD": "5"},
            f"COMPORTA_BREAKER_THRESHOLD must be {BREAKER_FIELDS}, got 'THRESHOLD'",
        ),
        (
            {"COMPORTA_BREAKER_PNCP_THRESHOLD": "0"},
            "COMPORTA_BREAKER_PNCP_THRESHOLD: threshold must be at least 1, got 0",
        ),
        (
            {"PNCP_CIRCUIT_BREAKER_COOLDOWN": "-5"},
            "PNCP_CIRCUIT_BREAKER_COOLDOWN: cooldown_seconds must be above 0 seconds, got -5",
        ),
        (
            {"PNCP_CIRCUIT_BREAKER_THRESHOLD": "5", "COMPORTA_BREAKER_PNCP_THRESHOLD": "6"},
            (
                "PNCP_CIRCUIT_BREAKER_THRESHOLD must have the same value as "
                "COMPORTA_BREAKER_PNCP_THRESHOLD, 6, got 5"
            ),
        ),
    ],
)
def test_variable__invalid__is_an_error_that_names_it(
    environ: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        load(tmp_path, environ)
    assert str(error.value) == message


def test_variable__that_matches_two_upstreams__is_an_error(tmp_path: Path) -> None:
    text = "[upstreams.a-b]\n[upstreams.'a.b']\n"
    with pytest.raises(
        ValueError, match=r"^COMPORTA_UPSTREAM_A_B_TIMEOUT must match one upstream, got 'a-b', 'a\.b'$"
    ):
        load(tmp_path, {"COMPORTA_UPSTREAM_A_B_TIMEOUT": "1"}, text)
