"""Searches over all sources.

- ``query``: parses and validates what a client searches for.
- ``fetcher``: fetches the listings of one source, ``listing_reader`` reads and shares them, and
  ``listings`` combines them. ``merge`` merges the notices of all sources.
- ``read_class``: the priority class in which the pages of a listing wait for capacity. ``waiting_users``:
  users of other workers who raise it.
- ``search``: combines them with the cache. ``response`` renders what clients get.
- ``pending_answers``: the notices so far of a source that is still being read, and when the rest is expected.
- ``coverage``: which federative units a search covered, and their JSON.
- ``progress``, ``stream``: the progress of a search as server-sent events.
"""
