"""What a worker does while its shared store is unreachable: it continues with its share of every limit.

- ``store``: ``FailoverStore``, in front of a shared engine; switches between it and the local share.
- ``local_share``: ``LocalShare``, this worker's own state during one outage.
- ``control``: what the other modules use of a failover store, and the translation of raw engine errors.
- ``bound_limit``: a limit's direct path, on an engine of this machine that may fail.
- ``heartbeat``, ``heartbeat_run``: the background thread that registers the worker and polls.
- ``recovery``: the end of an outage: probes, reports of what was granted, and the rejoin.
- ``barrier``: where the workers that lost the store wait for each other.
- ``reports``: what was granted without the store, until the store has acknowledged it.
- ``change_follower``: passes on changes in the store; ``read_changes``: the operation that reads them;
  ``log_reads``: reading them together with a caller's operation.
- ``registration``: this worker's place in the registry.
- ``worker_registry``: the operations on the list of live workers.
- ``worker_count``, ``worker_count_file``: how many workers there are, and the count that is kept for a
  restart.
- ``machine_workers``: how many workers of this machine are in fallback; ``lock_files``: the files by which it
  counts them.
"""
