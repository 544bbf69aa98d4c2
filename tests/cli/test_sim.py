"""``comporta sim``: its options, its table, its JSON and its charts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.cli.cli_runner import run

from comporta.cli import sim as sim_module
from comporta.cli.sim_options import (
    parse_duration,
    parse_fault,
    parse_rate,
    parse_share,
    parse_upstream,
)
from comporta.simulation.faults import Fault
from comporta.simulation.playback import UpstreamFault
from comporta.simulation.upstream_model import ModelOptions

SETTINGS = """
state = "redis://localhost/0"

[upstreams.pncp]
limit = "5/s"
max_wait = 1.0

[upstreams.pcp]
limit = "100/s"
breaker = { threshold = 5, cooldown_seconds = 5 }
"""


@pytest.fixture
def settings(tmp_path: Path) -> str:
    path = tmp_path / "comporta.toml"
    path.write_text(SETTINGS)
    return str(path)


def simulate(*words: str) -> list[dict[str, Any]]:
    ran = run("sim", *words, "--json", "--no-report")
    assert ran.exit_code == 0, ran.output
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    return rows


def test_sim__demand_above_the_limit__refuses_the_rest_and_sends_no_more(settings: str) -> None:
    pncp, pcp = simulate(settings, "--workers", "4", "--seconds", "30", "--demand", "5/s", "--seed", "7")
    assert pncp["calls"] == pytest.approx(600, rel=0.2)
    assert pncp["attempts"] <= 5 + 5 * 30
    assert (pncp["over_limit"], pcp["limited"], pcp["failed"]) == (0, 0, 0)
    assert pncp["limited"] > 300
    assert pcp["ok"] >= pcp["calls"] - 10
    assert 0 < pncp["wait_median"] <= pncp["wait_p95"] <= pncp["wait_max"] <= 1.1


def test_sim__same_seed__gives_the_same_numbers(settings: str) -> None:
    words = (settings, "--seconds", "10", "--fault", "redis-hang@3s+2s", "--seed", "3")
    assert simulate(*words) == simulate(*words)
    assert simulate(*words) != simulate(*words[:-1], "4")


def test_sim__server_hangs__workers_go_on_with_their_shares(settings: str) -> None:
    [pncp, _] = simulate(settings, "--seconds", "30", "--fault", "redis-hang@10s+5s")
    assert 4 <= pncp["fallback_seconds"] <= 8
    assert pncp["over_limit"] <= 8
    assert pncp["failed"] == 0


def test_sim__upstream_goes_down__breaker_opens_and_refuses(settings: str) -> None:
    words = ("--seconds", "30", "--demand", "4/s", "--upstream", "pcp:latency=0.05s")
    pncp, pcp = simulate(settings, *words, "--fault", "pcp-down@5s+10s")
    assert pcp["open"] > 20
    assert pcp["failed"] > 0
    assert 5 <= pcp["open_seconds"] <= 20
    assert pncp["open"] == 0


def test_sim__overloaded_upstream__fails_calls_and_retries_multiply_them(tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    path.write_text('state = "shared://"\n[upstreams.pcp]\nlimit = "100/s"\nbreaker = false\n')
    words = (str(path), "--seconds", "20", "--demand", "10/s", "--seed", "1")
    [calm] = simulate(*words, "--upstream", "pcp:capacity=100/s")
    [struggling] = simulate(*words, "--upstream", "pcp:capacity=10/s,latency=0.3s,queue=0.5s")
    assert (calm["failed"], calm["retries"]) == (0, 0)
    assert struggling["failed"] > 0
    assert struggling["retries"] > 0


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_sim__report__has_a_picture_of_each_upstream(settings: str, suffix: str, tmp_path: Path) -> None:
    report = tmp_path / f"report{suffix}"
    faults = [
        f"--fault={text}"
        for text in ("redis-hang@4s+3s", "redis-wipe@8s+1s", "pcp-slow@2s+3s=1s", "worker-kill@5s+1s=50%")
    ]
    ran = run("sim", settings, "--seconds", "10", "--demand", "9/s", "--report", str(report), *faults)
    assert ran.exit_code == 0, ran.output
    assert ran.stderr.strip() == f"Charts: {report}"
    text = report.read_text("utf-8")
    if suffix == ".svg":
        assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own text
    else:
        assert "<th scope='row'>refused by the limit</th>" in text
    for words in ("pncp: calls per second", "pcp: calls per second", "wait in seconds", "redis-hang at 4 s"):
        assert words in text
    for words in ("redis-wipe at 8 s", "worker-kill at 5 s"):
        assert words in text


def test_sim__table__has_a_column_for_each_upstream(settings: str) -> None:
    ran = run("sim", settings, "--seconds", "5", "--no-report")
    lines = ran.stdout.splitlines()
    assert lines[0].split() == ["pncp", "pcp"]
    assert [line for line in lines if line.strip().startswith("requests over the limit")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--upstream", "nope:capacity=1/s"), "--upstream must name one of pncp, pcp, got 'nope'"),
        (("--upstream", "pncp:speed=1/s"), "--upstream must look like NAME:capacity=10/s"),
        (("--upstream", "pncp:capacity=fast"), "--upstream pncp: capacity must be a rate such as 10/s"),
        (("--upstream", "pncp:latency=-1"), "--upstream pncp: latency must be a duration such as 30s or 5m"),
        (("--upstream", "pncp:errors=200%"), "--upstream pncp: errors must be a share such as 2% or 0.02"),
        (("--demand", "many"), "--demand must be a rate such as 10/s"),
        (("--fault", "redis-hang"), "--fault must look like redis-hang@30s+5s"),
        (("--fault", "redis-melt@1s"), "--fault must be one of redis-hang, redis-crash"),
        (("--fault", "redis-hang@5m"), "--fault redis-hang@5m must begin within the 120 s"),
        (("--fault", "worker-kill@1s=9"), "must be a number of workers, 1 to 4, or such as 50%, got '9'"),
        (("--report", "report.png"), "--report must end with .html or .svg, got 'report.png'"),
        (("--report", "/nowhere/at/all.svg"), "the directory /nowhere/at does not exist"),
        (("--demand", "100000/s", "--seconds", "86400"), "a simulation must have at most 20,000,000 calls"),
    ],
)
def test_sim__wrong_option__says_what_it_may_be(settings: str, words: tuple[str, ...], message: str) -> None:
    ran = run("sim", settings, *words)
    assert ran.exit_code == 2
    assert message in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file or directory"),
        ("[upstreams.pncp]\nlimit = 5\n", "limit"),
        ("state = 'memory://'\n", "must have a table [upstreams.<name>], got none"),
        ("[upstreams.pncp]\n", "limit must be given"),
    ],
)
def test_sim__settings_file_wrong__says_what_is_wrong(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "comporta.toml"
    if text is not None:
        path.write_text(text)
    ran = run("sim", str(path), "--no-report")
    assert ran.exit_code == 2
    assert message in " ".join(ran.stderr.split())


def test_sim__greenlet_missing__names_the_extra(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_module, "find_spec", lambda name: None)
    ran = run("sim", settings)
    assert ran.exit_code == 1
    assert "pip install 'comporta[cli,simulation]'" in ran.stderr


def test_progress__terminal__shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with sim_module._show_progress(60) as on_progress:
        on_progress(0.5)


def test_parse_upstream__all_fields__are_read() -> None:
    parsed = parse_upstream("a-b:capacity=600/minute,latency=40ms,errors=2%,queue=1m,demand=2/s", ["a-b"])
    assert parsed.name == "a-b"
    assert parsed.model == ModelOptions(10.0, 0.04, 0.02, 60.0)
    assert parsed.demand == 2.0
    assert parse_upstream("x", ["x"]).model == ModelOptions()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("redis-hang@30s+5s", Fault("hang", 30, 5)),
        ("redis-crash@1m", Fault("crash", 60, 60)),
        ("redis-wipe@1s+500ms", Fault("crash", 1, 0.5, (), "empty")),
        ("redis-read-only@1s+1s", Fault("read_only", 1, 1)),
        ("redis-slow@1s+1s=200ms", Fault("slow", 1, 1, (), "0.2")),
        ("redis-lossy@1s+1s", Fault("loss", 1, 1, (), "0.05")),
        ("redis-cut@1s+1s=50%", Fault("black_hole", 1, 1, (0, 1))),
        ("worker-pause@1s+1s", Fault("pause", 1, 1, (0,))),
        ("a-b-down@1s+2s", UpstreamFault("a-b", "down", 1, 2)),
        ("a-b-slow@1s+2s", UpstreamFault("a-b", "slow", 1, 2, 2)),
        ("a-b-refuses@1s+2s=7s", UpstreamFault("a-b", "refuses", 1, 2, 7)),
    ],
)
def test_parse_fault__each_kind__is_read(text: str, fault: Fault | UpstreamFault) -> None:
    assert parse_fault(text, ["a-b"], 4, 120) == fault


def test_parsers__plain_numbers__are_accepted() -> None:
    assert parse_duration("x", "1.5") == 1.5
    assert parse_duration("x", "2h") == 7200
    assert parse_share("x", "0.5") == 0.5
    assert (parse_rate("x", "0"), parse_rate("x", "0.3/s"), parse_rate("x", "30/m")) == (0, 0.3, 0.5)
    for wrong in ("nan", "x%"):
        with pytest.raises(ValueError, match="must be a share"):
            parse_share("x", wrong)


def test_sim__no_demand_refusals_and_busy_callers__are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.simulation.playback.CALLERS_MAX", 1)
    path = tmp_path / "comporta.toml"
    path.write_text(
        'state = "memory://"\n[upstreams.a]\nlimit = "50/s"\ntimeout = false\n[upstreams.b]\nlimit = "1/s"\n'
    )
    words = (str(path), "--workers", "11", "--seconds", "5", "--demand", "3/s")
    faults = ("--fault", "a-refuses@1s+1s=1s", "--fault", "worker-kill@2s+1s", "--upstream", "b:demand=0")
    a, b = simulate(*words, *faults)
    assert a["busy"] > 0
    assert a["ok"] > 0
    assert (b["calls"], b["attempts"]) == (0, 0)


def test_sim__limit_of_each_worker_alone__shows_what_exceeds_it(tmp_path: Path) -> None:
    path, report = tmp_path / "comporta.toml", tmp_path / "report.svg"
    path.write_text('state = "memory://"\n[upstreams.a]\nlimit = "2/s"\n')
    ran = run("sim", str(path), "--seconds", "5", "--demand", "5/s", "--report", str(report), "--json")
    assert json.loads(ran.stdout)[0]["over_limit"] > 10
    assert "over limit" in report.read_text("utf-8")


def test_sim__bug_in_a_worker__is_raised(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(program: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr("comporta.simulation.playback.PlaybackProgram.run", fails)
    with pytest.raises(LookupError, match="a bug"):
        run("sim", settings, "--seconds", "1", "--no-report")
