"""For tests: ours, and those of whoever builds on comporta or writes a store of their own.

``ManualClock`` moves time by hand; ``StoreConformance`` is what every store must pass; ``Server``,
``Sentinels`` and ``Cluster`` start real Valkeys or Redises on free ports, and ``FaultProxy`` stands between
them and whoever asks; ``PostgresServer`` starts a real database; ``SimulatedUpstream`` is what a program
depends on, with a limit of its own; ``ProcurementServer`` is two procurement portals with their bad days, and
``SheetsServer`` stands in for Google Sheets.
"""

from comporta.testing.certificates import Certificate
from comporta.testing.clock import ManualClock
from comporta.testing.clusters import Cluster
from comporta.testing.conformance import StoreConformance
from comporta.testing.postgres import PostgresServer
from comporta.testing.procurement import ProcurementServer, SimulatedPortal
from comporta.testing.programs import find_postgres, find_servers
from comporta.testing.proxy import FaultProxy
from comporta.testing.sentinels import Sentinels
from comporta.testing.servers import Server
from comporta.testing.sheets import SheetsServer
from comporta.testing.upstreams import SimulatedUpstream

__all__ = [
    "Certificate",
    "Cluster",
    "FaultProxy",
    "ManualClock",
    "PostgresServer",
    "ProcurementServer",
    "Sentinels",
    "Server",
    "SheetsServer",
    "SimulatedPortal",
    "SimulatedUpstream",
    "StoreConformance",
    "find_postgres",
    "find_servers",
]
