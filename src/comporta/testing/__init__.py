"""For tests: ours, and those of whoever builds on comporta or writes a store of their own.

``ManualClock`` moves time by hand; ``StoreConformance`` is what every store must pass; ``Server`` starts a
real Valkey or Redis on a free port.
"""

from comporta.testing.clock import ManualClock
from comporta.testing.conformance import StoreConformance
from comporta.testing.servers import Server, find_servers

__all__ = ["ManualClock", "Server", "StoreConformance", "find_servers"]
