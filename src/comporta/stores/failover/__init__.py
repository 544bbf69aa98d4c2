"""What a worker does while its shared store is unreachable: it goes on with its share of every limit.

- ``store``: ``FailoverStore``, in front of a shared engine; switches between it and the local share.
- ``local_share``: ``LocalShare``, this worker's own state during one outage.
- ``control``: what the other modules use of a failover store, and how raw engine errors are read.
- ``bound_limit``: a limit's direct path, on an engine of this machine that may fail.
- ``heartbeat``, ``heartbeat_run``: the background thread that registers the worker and polls.
- ``recovery``: the end of an outage: probes, reports of what was granted, and the rejoin.
- ``barrier``: where the workers that lost the store wait for each other.
- ``reports``: what was granted without the store, until the store has acknowledged it.
- ``change_follower``: passes on what changed in the store; ``read_changes``: the operation that asks for it;
  ``log_reads``: asking for it together with an operation of a caller.
- ``registration``: this worker's place in the registry.
- ``worker_registry``: the operations on the list of live workers.
- ``worker_count``, ``worker_count_file``: how many workers there are, and what is left of it for a restart.
- ``machine_workers``: how many workers of this machine are in fallback.
"""
