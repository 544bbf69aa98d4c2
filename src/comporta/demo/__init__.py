"""``comporta demo``: the real service, simulated portals and users, and a story that is told of them.

Nothing here is simulated but the world outside: the portals and the users. Workers, state, database, limits
and breakers are those that ``comporta serve`` has.
"""
