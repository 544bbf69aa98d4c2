"""Upstreams from a settings file, and errors with their line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from comporta import Upstreams
from comporta.settings import load_settings

VALID = """
state = "memory://from-file"

[upstreams.pncp]
limit = "10/s burst 5"
max_wait = 2
max_concurrent = 7
permit_ttl = 90
timeout = false
pause_max = 60
count = "series"
breaker = {threshold = 3, probes = 2}
retry = {retries = 1, jitter = "full", deadline = false, budget_ratio = 0.5, budget_least = 3}
degradation = {drop = 0.2, rule = "accepted"}

[upstreams.bare]
limit = {strategy = "sliding_window", capacity = 5, window = 60}
breaker = false
retry = false
degradation = false

[upstreams.plain]
limit = "1/s"
breaker = "other"
retry = true
degradation = true

[breakers.other]
threshold = 8
"""


def write_file(folder: Path, text: str) -> Path:
    path = folder / "f.toml"
    path.write_text(text)
    return path


def test_file__valid__configures_every_upstream(tmp_path: Path) -> None:
    upstreams = Upstreams.from_file(write_file(tmp_path, VALID))
    assert list(upstreams) == ["pncp", "bare", "plain"]
    assert len(upstreams) == 3
    pncp = upstreams["pncp"]
    assert pncp.limiter.config.capacity == 5
    assert (pncp._policies.max_wait, pncp._policies.pause_max, pncp._policies.counts_attempts) == (
        2,
        60,
        False,
    )
    assert pncp._options.timeouts is None
    assert pncp.permits is not None
    assert (pncp.permits.max_concurrent, pncp.permits.permit_ttl) == (7, 90)
    assert pncp.breaker is not None
    assert (pncp.breaker.name, pncp.breaker.threshold, pncp.breaker.config.probes) == ("pncp", 3, 2)
    assert pncp.breaker.cooldown_seconds == 120  # the default of this name
    assert pncp.retry is not None
    assert (pncp.retry.backoff.retries, pncp.retry.backoff.jitter) == (1, "full")
    assert pncp.retry.backoff.deadline is None
    budget = pncp._policies.budget
    assert budget is not None
    assert (budget.name, budget.budget.ratio, budget.budget.least) == ("pncp", 0.5, 3)
    assert pncp._policies.degradation is not None
    assert (pncp._policies.degradation.drop, pncp._policies.degradation.rule) == (0.2, "accepted")


def test_file__policies_disabled_or_defined_elsewhere__are_applied(tmp_path: Path) -> None:
    upstreams = Upstreams(load_settings(write_file(tmp_path, VALID), {}))
    bare, plain = upstreams["bare"], upstreams["plain"]
    assert (bare.breaker, bare.retry, bare._policies.degradation) == (None, None, None)
    assert bare.limiter.config.window == 60
    assert plain.breaker is not None
    assert (plain.breaker.name, plain.breaker.threshold) == ("other", 8)
    assert plain.retry is not None
    assert plain._policies.degradation is not None
    assert plain.store is bare.store
    asyncio.run(upstreams.aclose())


def test_name__unknown__raises_listing_the_known_names(tmp_path: Path) -> None:
    upstreams = Upstreams.from_file(write_file(tmp_path, VALID))
    with pytest.raises(KeyError, match="upstream must be one of 'pncp', 'bare', 'plain', got 'pcp'"):
        upstreams["pcp"]
    assert "pcp" not in upstreams
    with pytest.raises(
        KeyError, match=r"upstream is not defined: the settings have no \[upstreams\], got 'pcp'"
    ):
        Upstreams.from_file(write_file(tmp_path, "state = 'memory://none'"))["pcp"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.toml:1: [upstreams.a]: limit must be given, such as '10/s', got nothing"),
        ("limit = 'ten'", "f.toml:2: [upstreams.a]: limit must look like '10/s'"),
        ("limit = '0/s'", "f.toml:2: [upstreams.a]: amount must be 1 to 1000000000, got 0"),
        (
            "limit = '1/s'\nmax_wait = -1",
            "f.toml:3: [upstreams.a]: max_wait must be at least 0 seconds, got -1",
        ),
        ("limit = '1/s'\nmax_wait = 1e9", "f.toml:3: [upstreams.a]: max_wait must be 0 to 86400 seconds"),
        (
            "limit = '1/s'\nmax_concurrent = 0",
            "f.toml:3: [upstreams.a]: max_concurrent must be at least 1, got 0",
        ),
        (
            "limit = '1/s'\nmax_concurrent = 99999",
            "f.toml:3: [upstreams.a]: max_concurrent must be 1 to 10000, got 99999",
        ),
        ("limit = '1/s'\ncount = 'x'", "f.toml:3: [upstreams.a]: count must be one of"),
        ("limit = '1/s'\nwait = 1", "f.toml:3: [upstreams.a]: fields must be among"),
        (
            "limit = '1/s'\n[upstreams.a.breaker]\nthreshold = 0",
            "f.toml:4: [upstreams.a.breaker]: threshold must be at least 1, got 0",
        ),
        (
            "limit = '1/s'\n[upstreams.a.breaker]\ncooldown_seconds = -1",
            "f.toml:4: [upstreams.a.breaker]: cooldown_seconds must be above 0 seconds, got -1",
        ),
        (
            "limit = '1/s'\n[upstreams.a.breaker]\ncooldown_seconds = 1e9",
            "f.toml:4: [upstreams.a.breaker]: cooldown_seconds must be 0.001 to 86400, got 1000000000.0",
        ),
        (
            "limit = '1/s'\nbreaker = 'b'",
            "f.toml:3: [upstreams.a]: breaker must be one of the breakers",
        ),
        (
            "limit = '1/s'\n[upstreams.a.retry]\nretries = 101",
            "f.toml:4: [upstreams.a.retry]: retries must be 0 to 100, got 101",
        ),
        (
            "limit = '1/s'\n[upstreams.a.retry]\nbudget_ratio = 101",
            "f.toml:4: [upstreams.a.retry]: budget_ratio must be 0 to 100, got 101",
        ),
        (
            "limit = '1/s'\n[upstreams.a.degradation]\nevery = 301",
            "f.toml:4: [upstreams.a.degradation]: every must be above 0 and at most 300 seconds, got 301",
        ),
    ],
)
def test_file__invalid_value__raises_once_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, f"[upstreams.a]\n{text}\n")
    with pytest.raises(ValueError, match=r"f\.toml") as raised:
        Upstreams(load_settings(path, {"COMPORTA_STATE": "memory://mistakes"}))
    raised_message = str(raised.value).replace(str(path), "f.toml")
    assert message in raised_message
    assert raised_message.count("f.toml") == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("http://x", "f.toml:1: state must start with one of memory://"),
        ("shared://bad name", "f.toml:1: "),
    ],
)
def test_file__unusable_state__raises_with_its_line(
    state: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMPORTA_STATE", raising=False)
    path = write_file(tmp_path, f"state = '{state}'\n[upstreams.a]\nlimit = '1/s'\n")
    with pytest.raises(ValueError, match=r"f\.toml") as raised:
        Upstreams.from_file(path)
    assert str(raised.value).replace(str(path), "f.toml").startswith(message)


def test_file__limit_name_in_use__raises_with_its_line(tmp_path: Path) -> None:
    first = Upstreams.from_file(
        write_file(tmp_path, "state = 'memory://twice'\n[upstreams.a]\nlimit = '1/s'")
    )
    other = write_file(tmp_path, "state = 'memory://twice'\n[upstreams.a]\nlimit = '2/s'")
    with pytest.raises(ValueError, match=r"f\.toml:2: \[upstreams\.a\]: name 'a' is in use on this store"):
        Upstreams.from_file(other)
    assert list(first) == ["a"]
