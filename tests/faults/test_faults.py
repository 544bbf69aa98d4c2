"""Every fault of the documentation, provoked for real on every installed server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.faults.all_faults import FAULTS
from tests.faults.catalog import Fault
from tests.faults.environment import FaultEnvironment

CASES = [pytest.param(fault, face, id=f"{fault.name}-{face}") for fault in FAULTS for face in fault.faces]


@pytest.mark.parametrize(("fault", "face"), CASES)
def test_fault__provoked_for_real__is_as_documented(
    fault: Fault,
    face: str,
    program: str,
    record_property: Callable[[str, object], None],
) -> None:
    record_property("fault", fault.name)
    with FaultEnvironment(program, face) as env:
        fault.check(env)
