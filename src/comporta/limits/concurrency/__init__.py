"""Concurrency limits: how many calls the whole fleet may have in flight.

- ``limit``: ``ConcurrencyLimit``, the class that users call
- ``permits``: a permit, the state of all permits of a limit, and a worker's share of them
- ``operation``: acquiring, releasing, renewing and listing permits, as operations
- ``call``, ``call_limits``: a permit and a token for a call, taken together
- ``own_permits``: the permits that this process holds, for outages of the store
- ``held_back``: permits of calls that have ended, and released within 10 ms
- ``fairness_queue``: claims of waiting processes, so that no process starves another
"""
