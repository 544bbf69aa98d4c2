"""``explain`` names where every value comes from."""

from __future__ import annotations

from pathlib import Path

from comporta.settings import ExplainedSetting, LimitSettings, Settings, explain, load_settings

FILE = """\
state = "redis://user:secret@localhost/0?ssl_password=secret&timeout=1"
[limits.a]
limit = "1/s"
[namespaces]
"x y" = "a"
[upstreams.pncp]
limit = "10/s"
lease = true
[upstreams.pncp.breaker]
threshold = 5
[upstreams.pncp.retry]
retries = 3
"""


def test_explain__file_and_variables__names_the_origin_of_each_value(tmp_path: Path) -> None:
    path = tmp_path / "f.toml"
    path.write_text(FILE)
    environ = {"PNCP_CIRCUIT_BREAKER_COOLDOWN": "60", "COMPORTA_UPSTREAM_PNCP_LIMIT": "20/s"}
    explained = explain(load_settings(path, environ))
    changed = [(name, value, where) for name, value, where in explained if where != "default"]
    assert changed == [
        ("state", "redis://***@localhost/0?ssl_password=***&timeout=1", f"{path}:1"),
        ("limits.a.limit", "1/s", f"{path}:3"),
        ("breakers.pncp.threshold", 5, f"{path}:10"),
        ("breakers.pncp.cooldown_seconds", 60, "PNCP_CIRCUIT_BREAKER_COOLDOWN"),
        ("upstreams.pncp.limit.limit", "20/s", "COMPORTA_UPSTREAM_PNCP_LIMIT"),
        ("upstreams.pncp.limit.lease", True, f"{path}:8"),
        ("upstreams.pncp.breaker", "pncp", f"{path}:9"),
        ("upstreams.pncp.retry.retries", 3, f"{path}:12"),
        ("namespaces.'x y'", "a", f"{path}:5"),
    ]
    assert ExplainedSetting("limits.a.strategy", "token_bucket", "default") in explained
    assert ExplainedSetting("upstreams.pncp.timeout", None, "default") in explained


def test_explain__nothing_configured__has_the_default_state() -> None:
    assert explain(Settings()) == [("state", "shared://", "default")]


def test_explain__created_in_a_program__names_the_origin_given_there() -> None:
    settings = Settings("memory://", {"a": LimitSettings("1/s", origin="my program")}, {"n": "a"})
    explained = explain(settings)
    assert ("state", "memory://", "state") in explained
    assert ("limits.a.limit", "1/s", "my program") in explained
    assert ("namespaces.n", "a", "settings") in explained
