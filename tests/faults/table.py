"""The whole table: importing the themes fills it."""

from tests.faults import access, clocks, network, states, topology, values  # noqa: F401 - see above
from tests.faults.rows import ROWS

__all__ = ["ROWS"]
