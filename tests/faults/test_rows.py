"""Every trouble of the documents' table, provoked for real on every server there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.rows import Row
from tests.faults.stage import Stage
from tests.faults.table import ROWS

from comporta.stores import workers

TRIED = [pytest.param(row, face, id=f"{row.name}-{face}") for row in ROWS for face in row.faces]


@pytest.mark.parametrize(("row", "face"), TRIED)
def test_trouble__provoked_for_real__is_as_documented(
    row: Row,
    face: str,
    program: str,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The way back is the same for all; awaiting callers are spared the wait for others: there are none."""
    record_property("fault_row", row.name)
    if face == "awaiting":
        monkeypatch.setattr(workers, "GATHER_US", 1000)
    with Stage(program, face) as stage:
        row.check(stage)
