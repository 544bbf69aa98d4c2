"""Every trouble of the documents' table, provoked for real on every server there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.rows import Row
from tests.faults.stage import Late, Stage
from tests.faults.table import ROWS

from comporta.stores import workers

LATE_TIMES = 3
"""What is late for a reason is late each time; a busy machine, which stalls us now and then, is not."""

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
    for time in range(1, LATE_TIMES + 1):
        try:
            with Stage(program, face) as stage:
                row.check(stage)
        except Late:
            if time == LATE_TIMES:
                raise
        else:
            return
