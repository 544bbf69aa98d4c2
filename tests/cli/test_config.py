"""``comporta config check``: mistakes that appear only when a limit is built."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.cli_runner import run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits.a]\nlimit = '1/s'\nstrategy = 'none_such'", "none_such"),
        ("[limits.a]\ncapacity = 0\n\nrate = 1", ":2: [limits.a]: capacity must be"),
        ("[limits.a]\nlimit = 'many'", ":2: [limits.a]: limit must look like '10/s'"),
        ("[upstreams.b]\ntimeout = 1\nlimit = 'many'", ":3: [upstreams.b]: limit must look like '10/s'"),
    ],
)
def test_check__limit_that_cannot_be_built__is_a_usage_error_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "comporta.toml"
    file.write_text(text)
    ran = run("config", "check", str(file))
    assert ran.exit_code == 2, ran.output
    assert message in " ".join(ran.stderr.split())


def test_check__valid_limits__are_shown(tmp_path: Path) -> None:
    file = tmp_path / "comporta.toml"
    file.write_text("[limits.a]\ncapacity = 5\nwindow = 60\nstrategy = 'sliding_window'\n")
    ran = run("config", "check", str(file))
    assert ran.exit_code == 0, ran.output
    assert "limits.a.strategy" in ran.stdout
