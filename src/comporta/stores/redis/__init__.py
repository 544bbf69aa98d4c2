"""The engines behind ``redis://`` and related schemes: state shared by a fleet on Redis or Valkey.

- ``store``: ``RedisStore``, one server.
- ``cluster``, ``cluster_slots``, ``cluster_hop``: ``ClusterStore``, the nodes of a cluster, which node owns
  which key, and the form in which a node receives an operation.
- ``cluster_reads``: which reads of a heartbeat go to a node in one call.
- ``override_copies``: the overrides that decisions carry to keys that are spread over a cluster.
- ``sentinel``: routes to a server: directly, or to the primary that sentinels name.
- ``pool``: the connections of blocking callers.
- ``async_batches``: the connection of each event loop, which sends the operations of one tick together.
- ``connection``, ``connection_async``: redis-py's connections with deadlines.
- ``deadline``: how long a call may take, which follows the usual round trip.
- ``protocol``: script calls as bytes. ``scan``: listing records.
- ``errors``: translation of server and network errors.
"""
