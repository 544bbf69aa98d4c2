"""Deterministic simulation of a fleet: the real code of many workers on virtual time, from one seed.

``simulate(draw_scenario(7))`` runs limits, leases, permits, breakers, retries, failover and heartbeats of
several workers in one thread, against a simulated server, network and upstream that fail, and returns a
history. ``check`` compares the history with what the documentation promises. The same seed gives the same
history.

- ``scenario``, ``drawn_scenarios``: the inputs of a simulation, drawn from a seed
- ``faults``: fault scripts, as values and as text; ``fault_actions``: what each fault does to a fleet
- ``simulated_fleet``: ``simulate``; the parts of one simulation
- ``program``: when the callers of a worker call; ``workload``, ``cache_workload``: what they call
- ``run_history``: what happened
- ``invariants``, ``policy_invariants``, ``share_invariants``: what must hold in every history;
  ``limit_excess``: by how much grants exceed a limit, and may
- ``runner``, ``shrinker``: many seeds, and the shortest fault script that still fails
- ``virtual_time``, ``worker``, ``host``, ``simulated_runtime``, ``event_loop``: threads, processes and event
  loops on virtual time
- ``network``, ``server``, ``connection``, ``store``, ``upstream``: what workers talk to
- ``server_engine``; ``step_engine``, ``server_overrides``, ``server_registry``; ``lua_engine``, ``keyspace``:
  what the server keeps, and how it carries out operations: by their Python steps or their Lua scripts
- ``playback``, ``playback_record``, ``upstream_model``: plays a settings file for ``comporta sim``

This package needs greenlet (``pip install 'comporta[simulation]'``), and lupa if the server is to run Lua
(``FleetScenario.lua``, ``pip install 'comporta[simulation,lua]'``).
"""

from comporta.simulation.drawn_scenarios import draw_scenario
from comporta.simulation.faults import Fault, format_faults, parse_faults
from comporta.simulation.invariants import INVARIANTS, check
from comporta.simulation.run_history import AppliedReport, Call, FleetHistory, Moment, Request
from comporta.simulation.runner import Failure, run_scenario, run_seed, run_seeds
from comporta.simulation.scenario import FleetScenario
from comporta.simulation.shrinker import shrink
from comporta.simulation.simulated_fleet import simulate

__all__ = [
    "INVARIANTS",
    "AppliedReport",
    "Call",
    "Failure",
    "Fault",
    "FleetHistory",
    "FleetScenario",
    "Moment",
    "Request",
    "check",
    "draw_scenario",
    "format_faults",
    "parse_faults",
    "run_scenario",
    "run_seed",
    "run_seeds",
    "shrink",
    "simulate",
]
