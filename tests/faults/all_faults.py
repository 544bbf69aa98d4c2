"""All faults: importing the modules adds them to the catalog."""

from tests.faults import access, clocks, network, server_states, topologies, values  # noqa: F401 - see above
from tests.faults.catalog import FAULTS

__all__ = ["FAULTS"]
