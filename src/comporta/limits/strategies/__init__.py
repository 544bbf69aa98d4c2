"""Limiting strategies: pure decisions in Python, each with the same decision in Lua.

Each strategy declares everything about itself in its own module: its name, how it reads a configuration, its
decisions, its Lua text, its share during an outage, and its leases.

- ``base``: the contract of a decision (``Strategy``), and its input and output values
- ``registered_strategy``: ``RegisteredStrategy``, a strategy that a configuration can name
- ``registry``: strategies by name; ``register_strategy`` adds one
- ``bucket``: what the two buckets share; ``window``, ``counted_window``: what the windows share
- ``token_bucket``, ``leaky_bucket``, ``fixed_window``, ``sliding_window``: the built-in strategies
- ``calendar_window``, ``schedule``: days and months of a time zone, with a strategy for each schedule
- ``recent_traffic``: how many units a key was granted in the last minute, kept inside its state
- ``outage_share``: the strategy of one worker while the shared store is unreachable
"""
