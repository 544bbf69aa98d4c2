"""State engines: where limits, breakers and other policies keep their state.

A store applies an operation to the states of some keys, atomically. It does not know what the operation
means. This package exports what you need to write an engine: see ``docs/guides/write-a-state-engine.md``.

- ``base``: the contract: ``Store``, ``Operation`` and their parts. ``bound_limit``: limits tied to a store.
  ``outage_info``: what is known about an outage.
- ``heartbeat_subscriber``: implemented by users of a store's heartbeat. ``in_process_states``: states that
  callers in the same process may read and replace.
- ``registry``: opens the store of a URL, with failover where it is shared.
- ``memory``: ``memory://``, dictionaries of one process. ``memory_space``: the dictionaries of one space.
  ``memory_fast_path``: a limit's direct path from a key to a decision.
- ``shared/``: ``shared://``, one machine, no server.
- ``redis/``: ``redis://`` and related schemes, a fleet.
- ``failover/``: what a worker does while its shared store is unreachable.
- ``records``, ``history``, ``journal``: operations that any engine can apply; ``lua`` loads their Lua
  versions.
- ``changes``: the log of what changed, which workers follow instead of polling.
- ``effects``: how flows use a store. ``name_claims``: one configuration per name on a store.
  ``live_objects``: objects by name, for pickles. ``bounded_cache``: caches that drop their oldest entries.
"""

from comporta.state_schemes import register_scheme
from comporta.stores.base import GONE, Operation, Script, State, StateKey, StateType, Store, key_text
from comporta.stores.records import RECORD

__all__ = [
    "GONE",
    "RECORD",
    "Operation",
    "Script",
    "State",
    "StateKey",
    "StateType",
    "Store",
    "key_text",
    "register_scheme",
]
