"""What a worker does while its shared store is unreachable: it goes on with its share of every limit.

- ``store``: ``FailoverStore``, in front of a shared engine; switches between it and the local share.
- ``local_share``: ``LocalShare``, this worker's own state during one outage.
- ``control``: what the other modules use of a failover store, and how raw engine errors are read.
- ``bound_limit``: a limit's direct path, on an engine of this machine that may fail.
- ``heartbeat``: the background thread that registers the worker, polls, probes, and rejoins after an outage.
- ``worker_registry``: the operations on the list of live workers.
- ``worker_count``, ``worker_count_file``: how many workers there are, and what is left of it for a restart.
"""
