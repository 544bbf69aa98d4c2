"""A cache in front of sources that fail, which shares the health of every key between all workers.

========================  ==============================================================================
``cache.py``              ``HealthCache``, the methods users call; ``sync_cache.py``: those of blocking code
``core.py``               what each method does, once, as a flow for both
``job.py``                the arguments and the state of one call of ``fetch``
``job_runner.py``         serves the cached result of a job, refreshes it, or waits for a load
``fetch.py``              one fetch: acquire the fleet's lease on a key, load, store
``result_writer.py``      stores a result, invalidates it elsewhere, evicts beyond the bounds
``last_errors.py``        the last error of each source in this process, as the cause of refusals
``single_flight.py``      one load per key and process, shared by all its callers
``local.py``              the in-process cache (L1) in front of the database
``backoff_memory.py``     keys in backoff with nothing to serve, remembered in this process
``invalidation.py``       notifies other processes through the store that a key has changed
``repository.py``         the database for flows; turns database errors into events and fallbacks
``tables.py``             every command as a blocking and an async method
``commands.py``           the commands that fetching needs; ``queries.py``: those that pages need
``sql.py``                the SQL statements; ``rows.py``: the rows they return
``maintenance_sql.py``    the SQL statements that evict, prune and count
``migrations.py``         the tables
``maintenance.py``        background thread: renews leases, writes access counts, prunes old rows
``expiry.py``             freshness: what may be served from memory, and for how long
``health.py``             backoff, freshness, priority and coverage rules (pure)
``coverage.py``           which units of a request a result covers (pure)
``entry.py``              ``Cached``, which callers get, and ``Loaded``, which loaders return
``loader_result.py``      validates and merges what loaders return
``params.py``             parameters as canonical JSON and as a hash
``serialization.py``      values as JSON
``removal.py``            removes results by key or tag, in all workers
``tags.py``               commands that remove by key or tag, and read many at once
``decorator.py``          names the calls of cached functions by their arguments
``table_limit.py``        decides when the table is checked against its bounds
``stats.py``              counts hits, stale hits and misses
``config.py``             the validated options
========================  ==============================================================================
"""
