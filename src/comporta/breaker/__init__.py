"""Circuit breakers: all workers stop calling a failing upstream together, and test it again with one call.

- ``breaker``: the public class, ``CircuitBreaker``, and its blocking form
- ``config``: the options of a breaker, validated once
- ``registry``: breakers by name, configured from a file and the environment
- ``admission``: whether a call may be made, and the state of a circuit for a health page
- ``guard``: reports the result of an admitted call, and decorates functions
- ``block``: a guarded block of code, which owns its admission, and decorated generators
- ``flows``: every method of a breaker, as a flow that threads and event loops share
- ``local_view``: what this process knows about one circuit; it consists of ``cached_state`` (the last reply
  and how long it is valid), ``reply_times`` (when it was made and ends), ``counters`` (results that are not
  reported yet), ``operation_builder`` and ``poller`` (the refresh that the heartbeat drives)
- ``worker_circuit``: the worker's own circuit, for a broken worker among healthy ones
- ``transitions``: the events and metrics for a state change that this process notices
- ``operation``: one step of a circuit as an operation that every store can apply, and its form during an
  outage
- ``store_clock``: the store's clock, estimated from its replies
- ``state_machine`` and ``breaker.lua``: the algorithm, written once in Python (with ``result_counts`` and
  ``normalization``) and once in Lua
- ``state``: the values that the state machine operates on
- ``codec``: a circuit as bytes
"""
