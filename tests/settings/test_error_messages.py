"""The exact error message for every mistake in a settings file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from comporta.settings import (
    BreakerSettings,
    RetrySettings,
    Settings,
    UpstreamSettings,
    load_settings,
)
from comporta.settings.field_types import TextTableField

LIMIT_FIELDS = (
    "'limit', 'rate', 'capacity', 'window', 'strategy', 'fallback', 'lease', 'shadow', 'limit_for', "
    "'batch_headroom', 'normal_headroom', 'closed_after'"
)
BREAKER_FIELDS = (
    "'threshold', 'cooldown_seconds', 'cooldown_factor', 'cooldown_max_seconds', 'failure_ratio', "
    "'slow_seconds', 'slow_ratio', 'window_seconds', 'minimum_calls', 'quorum', 'local_threshold', 'probes', "
    "'probes_at_once', 'probe_seconds', 'ramp_steps', 'ramp_seconds', 'staleness', 'shadow'"
)
UPSTREAM_FIELDS = (
    "'limit', 'max_wait', 'max_concurrent', 'permit_ttl', 'timeout', 'pause_max', 'count', 'breaker', "
    "'retry', 'degradation', 'fallback', 'lease', 'batch_headroom', 'normal_headroom'"
)
RETRY_FIELDS = (
    "'retries', 'base', 'factor', 'jitter', 'min_delay', 'max_delay', 'deadline', "
    "'budget_ratio', 'budget_least'"
)
STRATEGY = "the name of a strategy such as 'token_bucket'"
TOP_FIELDS = "'state', 'limits', 'namespaces', 'breakers', 'upstreams', 'service'"
NAMES = "1 to 100 of A-Z a-z 0-9 _ . -"
INCOMPLETE = "limit must be set, or 'capacity' together with 'rate' or 'window'"
LEASE = "true, false, text such as '50ms' or a number of seconds"
JITTER = "one of 'full', 'decorrelated', or two numbers of seconds such as [0, 0.5]"


def error_message(directory: Path, text: str | bytes, environ: dict[str, str] | None = None) -> str:
    """Return the error message for a file, with its path shortened."""
    path = directory / "f.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r".") as error:
        load_settings(path, environ or {})
    assert type(error.value) is ValueError
    return str(error.value).replace(str(path), "f.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nlimits = [\n\n", "f.toml:2: Invalid value (at end of document)"),
        ("a = 1\n= 2\n", "f.toml:2: Invalid statement (column 1)"),
        (b"# first\nstate = '\xff'", "f.toml:2: text must be UTF-8, got byte 0xff"),
        ("\nstat = 1", f"f.toml:2: fields must be among {TOP_FIELDS}, got 'stat'"),
        ("limits = 1", "f.toml:1: limits must be a table, got 1"),
        ("[[limits]]\nlimit = '1/s'", "f.toml:1: limits must be a table, got [{'limit': '1/s'}]"),
        ("namespaces = 1", "f.toml:1: namespaces must be a table, got 1"),
        ("breakers = 1", "f.toml:1: breakers must be a table, got 1"),
        ("upstreams = 1", "f.toml:1: upstreams must be a table, got 1"),
    ],
)
def test_file__invalid__is_an_error_with_its_line(text: str | bytes, message: str, tmp_path: Path) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nstate = 1", "f.toml:2: state must be a URL such as 'redis://localhost', got 1"),
        ("state = ''", "f.toml:1: state must be a URL such as 'redis://localhost', got ''"),
        (
            "state = ['redis://:secret@h']",
            "f.toml:1: state must be a URL such as 'redis://localhost', got a list",
        ),
        (
            "[state]\nurl = 'redis://:secret@h'",
            "f.toml:1: state must be a URL such as 'redis://localhost', got a dict",
        ),
        ("limits = 'redis://:secret@h'", "f.toml:1: limits must be a table, got 'redis://***@h'"),
        (
            "[limits.a]\nlimit = 'redis://:secret@h'",
            "f.toml:2: [limits.a]: limit must be text such as '10/s', got 'redis://***@h'",
        ),
        (
            "[limits.'redis://:secret@h']\nstate = 1",
            f"f.toml:2: [limits.'redis://***@h']: fields must be among {LIMIT_FIELDS}, got 'state'",
        ),
    ],
)
def test_state__invalid__is_an_error_without_its_password(text: str, message: str, tmp_path: Path) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "origin", "received"),
    [
        ("\n\nstate = 'user:secret@host?password=secret'", "f.toml:3", "host"),
        ("state = 'localhost:6379'", "f.toml:1", "localhost:6379"),
    ],
)
def test_state__without_a_scheme__is_an_error_without_its_password(
    text: str, origin: str, received: str, tmp_path: Path
) -> None:
    message = error_message(tmp_path, text)
    assert message.startswith(f"{origin}: state must ")
    assert message.endswith(f", got {received!r}")


@pytest.mark.parametrize("part", ["://", "://:1", "?pass", "?password=", "@"])
def test_value__50_000_parts_of_a_url__is_an_error_within_milliseconds(part: str, tmp_path: Path) -> None:
    """A pattern that searches for the end of a password from each part would take minutes."""
    assert "limits must be a table, got '" in error_message(tmp_path, f"limits = '{50_000 * part}'")


def test_file__endless_device__is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.toml").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="the file must be at most 1000000 bytes long"):
        load_settings(tmp_path / "f.toml", {})


@pytest.mark.parametrize("variable", ["COMPORTA_STATE", "REDIS_URL"])
def test_state__invalid_in_a_variable__names_the_variable(variable: str, tmp_path: Path) -> None:
    message = error_message(tmp_path, "", {variable: "user:secret@host"})
    assert message.startswith(f"{variable}: state must ")
    assert message.endswith(", got 'host'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limits.a = '1/s'", "f.toml:1: [limits.a] must be a table, got '1/s'"),
        (
            "[limits.a]\nsource = 'x'",
            f"f.toml:2: [limits.a]: fields must be among {LIMIT_FIELDS}, got 'source'",
        ),
        ("[limits.a]\nlimit = 1", "f.toml:2: [limits.a]: limit must be text such as '10/s', got 1"),
        ("[limits.a]\nrate = '1'", "f.toml:2: [limits.a]: rate must be a number, got '1'"),
        ("[limits.a]\n\ncapacity = 1.5", "f.toml:3: [limits.a]: capacity must be a whole number, got 1.5"),
        ("[limits.a]\ncapacity = true", "f.toml:2: [limits.a]: capacity must be a whole number, got True"),
        (
            "[limits.a]\nwindow = 1979-05-27",
            "f.toml:2: [limits.a]: window must be a number of seconds, got datetime.date(1979, 5, 27)",
        ),
        (
            "[limits.a]\nstrategy = ['fixed_window']",
            f"f.toml:2: [limits.a]: strategy must be {STRATEGY}, got ['fixed_window']",
        ),
        (
            "[limits.a]\nlimit = '1/s'\nfallback = 'shut'",
            "f.toml:3: [limits.a]: fallback must be one of 'share', 'open', 'closed', got 'shut'",
        ),
        ("[limits.a]\nlease = [1]", f"f.toml:2: [limits.a]: lease must be {LEASE}, got [1]"),
        (
            "[limits.a]\nlimit = '1/s'\nrate = 1\nwindow = 2",
            (
                "f.toml:3: [limits.a]: limit must not be combined with 'rate', 'window': it already includes "
                "them"
            ),
        ),
        (
            "\n[limits.a]\nrate = 1",
            f"f.toml:2: [limits.a]: {INCOMPLETE}, got 'rate'",
        ),
        (
            "[limits.a]\nstrategy = 'fixed_window'",
            f"f.toml:1: [limits.a]: {INCOMPLETE}, got none",
        ),
        (
            "[limits]\n'a b' = {limit = '1/s'}",
            f"f.toml:2: [limits.'a b']: the name of a limit must be {NAMES}, got 'a b'",
        ),
        (
            "[limits.a]\nlimit = '1/s'\n[namespaces]\nx = 'b'",
            "f.toml:4: [namespaces]: 'x' must be one of the limits, 'a', got 'b'",
        ),
        ("[namespaces]\nx = ['b']", "f.toml:2: [namespaces]: 'x' must be one of the limits, none, got ['b']"),
        (
            "[limits.a]\nlimit = '1/s'\n[namespaces]\n'' = 'a'",
            "f.toml:4: [namespaces]: a namespace must not be empty, got ''",
        ),
        (
            f"[limits.a]\nlimit = 0x{'f' * 4000}",
            "f.toml:2: [limits.a]: limit must be text such as '10/s', got an oversized int",
        ),
    ],
)
def test_limits__mistake__is_an_error_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.unmeasured
@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("threshold = 0", "at least 1, got 0"),
        ("threshold = -3", "at least 1, got -3"),
        ("threshold = true", "a whole number or false, got True"),
        ("threshold = 1.5", "a whole number or false, got 1.5"),
        ("cooldown_seconds = -1", "above 0 seconds, got -1"),
        ("cooldown_seconds = 0", "above 0 seconds, got 0"),
        ("cooldown_seconds = false", "a number of seconds, got False"),
        ("cooldown_seconds = '2m'", "a number of seconds, got '2m'"),
        ("cooldown_seconds = inf", "finite, got inf"),
        ("cooldown_seconds = nan", "finite, got nan"),
        ("failure_ratio = 0", "above 0 and at most 1, got 0"),
        ("failure_ratio = 1.1", "above 0 and at most 1, got 1.1"),
        ("slow_seconds = 0.0", "above 0 seconds, got 0.0"),
        ("slow_ratio = 50", "above 0 and at most 1, got 50"),
        ("window_seconds = -0.1", "above 0 seconds, got -0.1"),
        ("minimum_calls = 0", "at least 1, got 0"),
        ("quorum = 0", "at least 1, got 0"),
        ("probes = 0", "at least 1, got 0"),
        ("probe_seconds = 0", "above 0 seconds, got 0"),
        ("ramp_steps = -1", "at least 0, got -1"),
        ("ramp_seconds = 0", "above 0 seconds, got 0"),
        ("staleness = 0", "above 0 seconds, got 0"),
    ],
)
@pytest.mark.parametrize("table", ["breakers.pncp", "upstreams.pncp.breaker"])
def test_breaker__value_out_of_range__is_an_error_with_its_line(
    table: str, field: str, problem: str, tmp_path: Path
) -> None:
    name = field.partition(" ")[0]
    assert (
        error_message(tmp_path, f"# a comment\n[{table}]\n{field}\n")
        == f"f.toml:3: [{table}]: {name} must be {problem}"
    )


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("limit = 5", "limit must be text such as '10/s', got 5"),
        ("fallback = 'open'", f"{INCOMPLETE}, got none"),
        ("max_wait = -1", "max_wait must be at least 0 seconds, got -1"),
        ("max_concurrent = 0", "max_concurrent must be at least 1, got 0"),
        ("max_concurrent = 'ten'", "max_concurrent must be a whole number or false, got 'ten'"),
        ("permit_ttl = 0", "permit_ttl must be above 0 seconds, got 0"),
        ("timeout = 0", "timeout must be above 0 seconds, got 0"),
        ("timeout = '3s'", "timeout must be a number of seconds or false, got '3s'"),
        ("pause_max = -1", "pause_max must be at least 0 seconds, got -1"),
        ("count = 'calls'", "count must be one of 'attempts', 'series', got 'calls'"),
        ("breaker = 5", "breaker must be a table, the name of one of the breakers, true or false, got 5"),
        ("breaker = 'nope'", "breaker must be one of the breakers, 'a', 'b', got 'nope'"),
        ("retry = 5", "retry must be a table, true or false, got 5"),
        ("degradation = 'steps'", "degradation must be a table, true or false, got 'steps'"),
        ("limt = '1/s'", f"fields must be among {UPSTREAM_FIELDS}, got 'limt'"),
    ],
)
def test_upstream__mistake__is_an_error_with_its_line(field: str, problem: str, tmp_path: Path) -> None:
    text = f"[breakers]\na = {{}}\nb.quorum = 2\n[upstreams.pncp]\n{field}\n"
    assert error_message(tmp_path, text) == f"f.toml:5: [upstreams.pncp]: {problem}"


@pytest.mark.parametrize(
    ("table", "field", "problem"),
    [
        ("retry", "retries = -1", "retries must be at least 0, got -1"),
        ("retry", "retries = 1.5", "retries must be a whole number, got 1.5"),
        ("retry", "base = -1", "base must be at least 0 seconds, got -1"),
        ("retry", "factor = 0.5", "factor must be at least 1, got 0.5"),
        ("retry", "jitter = 'half'", f"jitter must be {JITTER}, got 'half'"),
        ("retry", "jitter = [1]", f"jitter must be {JITTER}, got [1]"),
        ("retry", "jitter = [1, 0]", f"jitter must be {JITTER}, got [1, 0]"),
        ("retry", "jitter = [0, nan]", f"jitter must be {JITTER}, got [0, nan]"),
        ("retry", "jitter = ['a', 'b']", f"jitter must be {JITTER}, got ['a', 'b']"),
        ("retry", "jitter = 1", f"jitter must be {JITTER}, got 1"),
        ("retry", "max_delay = 0", "max_delay must be above 0 seconds, got 0"),
        ("retry", "deadline = 0", "deadline must be above 0 seconds, got 0"),
        ("retry", "budget_ratio = -0.1", "budget_ratio must be at least 0, got -0.1"),
        ("retry", "budget_least = -1", "budget_least must be at least 0, got -1"),
        ("retry", "attempts = 1", f"fields must be among {RETRY_FIELDS}, got 'attempts'"),
        ("degradation", "drop = 0", "drop must be above 0 and at most 1, got 0"),
        ("degradation", "floor = 0", "floor must be above 0 and at most 1, got 0"),
        ("degradation", "climb = 2", "climb must be above 0 and at most 1, got 2"),
        ("degradation", "every = 0", "every must be above 0 seconds, got 0"),
        ("degradation", "round_trip = 0", "round_trip must be above 0 seconds, got 0"),
        ("degradation", "rule = 'aimd'", "rule must be one of 'steps', 'accepted', 'cubic', got 'aimd'"),
        ("breaker", "treshold = 1", f"fields must be among {BREAKER_FIELDS}, got 'treshold'"),
        ("limit", "limit = 5", "limit must be text such as '10/s', got 5"),
        ("limit", "burst = 5", f"fields must be among {LIMIT_FIELDS}, got 'burst'"),
    ],
)
def test_upstream__mistake_in_a_nested_table__is_an_error_with_its_line(
    table: str, field: str, problem: str, tmp_path: Path
) -> None:
    where = f"[upstreams.pncp.{table}]"
    assert error_message(tmp_path, f"\n{where}\n\n{field}\n") == f"f.toml:4: {where}: {problem}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("breakers.a = 1", "f.toml:1: [breakers.a] must be a table, got 1"),
        ("\nupstreams.a = 1", "f.toml:2: [upstreams.a] must be a table, got 1"),
        (
            "[breakers.'']\n",
            f"f.toml:1: [breakers.'']: the name of a breaker must be {NAMES}, got ''",
        ),
        (
            "[upstreams.'a/b'.breaker]\n",
            f"f.toml:1: [upstreams.'a/b']: the name of an upstream must be {NAMES}, got 'a/b'",
        ),
        (
            "[upstreams.a]\nbreaker = 'a'",
            "f.toml:2: [upstreams.a]: breaker must be one of the breakers, none, got 'a'",
        ),
        (
            "[breakers.a]\nprobes = 5\n[upstreams.a.breaker]\nprobes = 6",
            "f.toml:4: [upstreams.a.breaker]: probes must be the same as at f.toml:2: [breakers.a], 5, got 6",
        ),
        (
            "[upstreams.a]\nlease = 2\nlimit = {limit = '1/s', lease = 1}",
            "f.toml:2: [upstreams.a]: lease must be the same as at f.toml:3: [upstreams.a.limit], 1, got 2",
        ),
        (
            "[upstreams]\na = {breaker = {threshold = 0}}",
            "f.toml:2: [upstreams.a.breaker]: threshold must be at least 1, got 0",
        ),
        (
            "[upstreams.a]\nlimit = '1/s'\nretry.retries = -1",
            "f.toml:3: [upstreams.a.retry]: retries must be at least 0, got -1",
        ),
    ],
)
def test_breakers_and_upstreams__mistake__is_an_error_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    assert error_message(tmp_path, text) == message


@pytest.mark.parametrize(
    "text",
    [f"a = {'[' * 50_000}", f"namespaces.x{'.a' * 2000} = 1", "a.b.c.d.e.f.g.h = [[]]"],
    ids=["arrays", "tables", "nine"],
)
def test_nesting__deeper_than_allowed__is_an_error(text: str, tmp_path: Path) -> None:
    assert error_message(tmp_path, text) == "f.toml: tables and arrays must be nested at most 8 levels deep"


def test_nesting__as_deep_as_allowed__is_read(tmp_path: Path) -> None:
    assert (
        error_message(tmp_path, "a.b.c.d.e.f.g.h = []")
        == f"f.toml:1: fields must be among {TOP_FIELDS}, got 'a'"
    )


def test_number__more_digits_than_python_reads__is_an_error(tmp_path: Path) -> None:
    message = error_message(tmp_path, f"a = {'9' * 5000}")
    assert message.startswith("f.toml: ")
    assert "Exceeds the limit" in message


@pytest.mark.parametrize(
    ("settings_type", "fields", "message"),
    [
        (BreakerSettings, {"threshold": 0}, "breaker: threshold must be at least 1, got 0"),
        (RetrySettings, {"jitter": "no"}, f"retry: jitter must be {JITTER}, got 'no'"),
        (
            UpstreamSettings,
            {"limit": "10/s"},
            "upstream: limit must be text such as '10/s' or a table, got '10/s'",
        ),
        (
            Settings,
            {"upstreams": {"a": UpstreamSettings(breaker="b")}},
            "upstream: breaker must be one of the breakers, none, got 'b'",
        ),
        (
            Settings,
            {"breakers": {"": BreakerSettings()}},
            f"breaker: the name of a breaker must be {NAMES}, got ''",
        ),
    ],
)
def test_settings__created_in_a_program__are_checked_too(
    settings_type: Any, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        settings_type(**fields)
    assert str(error.value) == message


def test_table_of_texts__given_as_text__is_refused_with_its_description() -> None:
    field = TextTableField("a table of keys and limits")
    assert field.unmet_requirement(field.parse("10/s")) == "a table of keys and limits"
