"""Searches over all sources.

- ``query``: parses and validates what a client searches for.
- ``fetcher``: fetches one source. ``merge`` merges the notices of all sources.
- ``search``: combines them with the cache. ``response`` renders what clients get.
- ``coverage``: which federative units a search covered, and their JSON.
- ``progress``, ``stream``: the progress of a search as server-sent events.
"""
