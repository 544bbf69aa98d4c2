"""A cache in front of sources that fail: it knows of every key how it fares.

``health.py``, ``coverage.py`` and ``params.py`` are pure. ``table.py`` is what all workers share,
``level.py`` what this process keeps in front of it, ``changes.py`` how the one hears of the other.
``loading.py`` is the story of one fetch, ``flights.py`` how many callers share it; ``cache.py`` is the face
users call.
"""
