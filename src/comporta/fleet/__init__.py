"""The status of a whole fleet: every worker publishes its part to the store, and any program can read it.

::

    calls, answers ─► FleetCounters ─┐                            ┌─► fleet_status_flow
    upstreams ─────► summaries ──────┼─► FleetPublisher ─► store ─┤   (upstreams, workers, events)
    events ──────────────────────────┘   (every 2 s)              └─► fleet_history_flow
                                                                      (an hour of counts)

====================  =================================================================================
``counters.py``       ``FleetCounters``: counts calls and answers until they are published
``publisher.py``      ``FleetPublisher``: the thread that publishes
``status_writer.py``  writes to the store what the publisher publishes in one run
``worker_watch.py``   publishes an event for each worker that left or stopped responding
``event_journal.py``  encodes the events of the journal, and merges them for readers (pure)
``failures.py``       the latest failures of each upstream, with their texts
``reader.py``         reads the status and the history of the fleet; needs nothing but the store
``overrides.py``      reads and changes overrides of upstreams that only their summaries describe
``summary.py``        an upstream's health as plain data and as one sentence (pure)
``series.py``         the columns of a history (pure)
``validation.py``     parses records that another program may have written (pure)
====================  =================================================================================
"""

from comporta.fleet.counters import FleetCounters
from comporta.fleet.publisher import FleetPublisher
from comporta.fleet.reader import fleet_history_flow, fleet_status_flow, upstream_summary_flow
from comporta.fleet.series import history_columns, last_minute
from comporta.fleet.summary import upstream_summary

__all__ = [
    "FleetCounters",
    "FleetPublisher",
    "fleet_history_flow",
    "fleet_status_flow",
    "history_columns",
    "last_minute",
    "upstream_summary",
    "upstream_summary_flow",
]
