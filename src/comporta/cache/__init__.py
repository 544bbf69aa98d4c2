"""A cache in front of sources that fail, which shares the health of every key between all workers.

========================  ==============================================================================
``cache.py``              ``HealthCache`` and ``SyncHealthCache``, the methods users call
``core.py``               what each method does, once, as a flow for both
``fetch.py``              one fetch: acquire the fleet's lease on a key, load, store, invalidate
``last_errors.py``        the last error of each source in this process, as the cause of refusals
``single_flight.py``      one load per key and process, shared by all its callers
``local.py``              the in-process cache (L1) in front of the database
``invalidation.py``       tells other processes through the store that a key has changed
``repository.py``         the database for flows; turns database errors into events and fallbacks
``tables.py``             every command as a blocking and an async method
``commands.py``           the commands that fetching needs; ``queries.py``: those that pages need
``sql.py``                the SQL statements; ``rows.py``: the rows they return
``migrations.py``         the tables
``maintenance.py``        background thread: renews leases, writes access counts, prunes old rows
``expiry.py``             freshness: what may be served from memory, and for how long
``health.py``             backoff, freshness, priority and coverage rules (pure)
``coverage.py``           which units of a request a result covers (pure)
``entry.py``              ``Cached``, which callers get, and ``Loaded``, which loaders return
``loader_result.py``      validates and merges what loaders return
``params.py``             parameters as canonical JSON and as a hash
``serialization.py``      values as JSON
``stats.py``              counts hits, stale hits and misses
``config.py``             the validated options
========================  ==============================================================================
"""
