"""A throttle with two levels: a global limit and one limit for each partition, both applied in one step.

- ``throttle.py``: :class:`HierarchicalThrottle` and its blocking interface, which users call
- ``degradation.py``: :class:`PartitionDegradation`, how errors lower a partition's limit
- ``operation.py``: the operation that acquires from both limits, on any store
- ``fast_path.py``: the same in this process, without a lock
- ``partitions.py``: the partitions that a process remembers and the callers that wait for them
"""
