"""Searches over all sources: ``query`` is what was asked, ``gathering`` asks one source, ``merging`` joins.

``searching`` puts them together with the cache; ``answers`` is what clients get, ``board`` and ``streaming``
what those see who watch.
"""
