"""systemd accepts the units of the documentation.

``make test`` needs no systemd: ``tests/surface/test_unit_file.py`` parses the unit there. Here it is
installed where the run is allowed to; no systemd at all is a failure, never a skip.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.debian import install_package

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "instance"),
    [("comporta-run@.service", "comporta-run@1.service"), ("comporta.service", "comporta.service")],
)
def test_unit__verified_by_systemd__has_no_errors(name: str, instance: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        assert install_package("systemd"), "systemd-analyze is missing: install the package systemd"
    program = tmp_path / "comporta"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (ROOT / "docs/operations" / name).read_text()
    unit = tmp_path / instance
    unit.write_text(text.replace("/opt/comporta/bin/comporta", str(program)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stderr
    complaints = [line for line in verified.stderr.splitlines() if instance in line]
    assert complaints == []
