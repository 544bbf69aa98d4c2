"""Tools for tests: a manual clock, real servers, a fault-injecting proxy and simulated upstreams.

What users import from here:

- ``clock``: ``ManualClock``, time that a test moves.
- ``conformance``: ``StoreConformance``, the tests that every store must pass.
- ``redis_server``, ``redis_sentinels``, ``redis_cluster``: ``Server``, ``Sentinels`` and ``Cluster`` start
  real Valkey or Redis servers on free ports; ``certificates`` makes the ``Certificate`` they use for TLS.
- ``postgres_server``: ``PostgresServer`` starts a real PostgreSQL.
- ``programs``: ``find_servers`` and ``find_postgres`` locate the programs of these servers.
- ``proxy``: ``FaultProxy`` delays, loses or corrupts the traffic between a client and a server.
- ``simulated_upstream``: ``SimulatedUpstream``, an HTTP server with a rate limit of its own.
- ``language_model``: ``SimulatedLanguageModel``, a provider whose answers cost tokens.
- ``sheets_server``: ``SheetsServer``, a stand-in for Google Sheets and Drive.
- ``procurement``: ``ProcurementServer``, two simulated procurement portals (``SimulatedPortal``);
  ``python -m comporta.testing.portals`` runs it as a process.

Behind them: ``faults`` and ``proxy_connection`` (the proxy), ``http_server``, ``fake_spreadsheet``,
``sheets_service``, ``fake_tenders``, ``resp`` (the Redis protocol), ``lifecycle`` and ``temp_directory``.
"""

from comporta.testing.certificates import Certificate
from comporta.testing.clock import ManualClock
from comporta.testing.conformance import StoreConformance
from comporta.testing.language_model import SimulatedLanguageModel
from comporta.testing.postgres_server import PostgresServer
from comporta.testing.procurement import ProcurementServer, SimulatedPortal
from comporta.testing.programs import find_postgres, find_servers
from comporta.testing.proxy import FaultProxy
from comporta.testing.redis_cluster import Cluster
from comporta.testing.redis_sentinels import Sentinels
from comporta.testing.redis_server import Server
from comporta.testing.sheets_server import SheetsServer
from comporta.testing.simulated_upstream import SimulatedUpstream

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
    "SimulatedLanguageModel",
    "SimulatedPortal",
    "SimulatedUpstream",
    "StoreConformance",
    "find_postgres",
    "find_servers",
]
