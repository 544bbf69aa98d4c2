"""Rate limits and concurrency limits that a whole fleet shares.

- ``limiter``, ``sync_limiter``: the limiters that users call; ``group``, ``group_flows``: several limits
  in one decision
- ``manager``, ``monitor``: limiters by name, with metrics and log lines
- ``config``, ``key``, ``cost``, ``decision``: the values that users pass and receive; ``arguments``: their
  validation
- ``per_key``: separate limits for some keys; ``shadow``: limits that refuse nothing
- ``flows``: every method of a limiter, implemented once; ``wait_queue``, ``wait_order``: waiting callers
- ``priority``: classes of callers and their headroom; ``claims``, ``claim_operation``: the order of waiters
  of different processes
- ``operation``: deciding one or several limits; ``acquire``: the hot path of one limit; ``acquire_up_to``:
  taking what is available; ``peek``: reading without taking; ``one_limit``: what the last two share;
  ``charge``: charging a limit after an outage; ``reply``: the replies; ``scripts``: the Lua scripts
- ``block``: guarded blocks and decorators
- ``bound_limits``: a limit on a server; ``fast_decision``: complete decisions for state in this process
- ``budgets``: estimates before a call, and its actual cost after it
- ``strategies``: the limiting algorithms; ``overrides``: changes to a running limit; ``leases``: many units
  in one step; ``concurrency``: calls in flight
"""
