"""Rate limits and concurrency limits that a whole fleet shares.

- ``limiter``, ``sync_limiter``: the limiters that users call; ``group``, ``group_flows``: several limits
  in one decision
- ``manager``, ``monitor``: limiters by name, with metrics and log lines
- ``config``, ``key``, ``cost``, ``decision``: the values that users pass and receive; ``arguments``: their
  validation
- ``per_key``: another limit for some keys; ``shadow``: limits that refuse nothing
- ``flows``: what a limiter can do, each method once; ``wait_queue``, ``wait_order``: callers that wait
- ``priority``: classes of callers and their headroom; ``claims``, ``claim_operation``: the order of waiters
  of different processes
- ``operation``: deciding one or several limits; ``acquire``: the hot path of one limit; ``acquire_up_to``:
  taking what there is; ``peek``: asking without taking; ``one_limit``: what both share; ``charge``:
  charging a limit after an outage; ``reply``: what all of them reply; ``scripts``: their Lua scripts
- ``block``: guarded blocks and decorators
- ``bound_limits``: a limit on a server; ``fast_decision``: whole decisions where the state is in this process
- ``budgets``: estimates before a call, and its real cost after it
- ``strategies``: the limiting algorithms; ``overrides``: changes to a running limit; ``leases``: many units
  in one step; ``concurrency``: calls in flight
"""
