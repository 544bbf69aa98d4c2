"""Overrides: changes to a running limit that every worker obeys from its next decision on.

- ``record``: the override record, and the strategy in effect under it
- ``operation``: the operations that change the record, for degradation, pauses and operators
- ``flows``: override, pause and resume a limit, each method once
- ``degradation``: lowers a limit when its upstream fails and raises it again
- ``notifications``: events and metrics about overrides
"""
