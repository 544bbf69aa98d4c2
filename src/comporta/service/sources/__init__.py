"""Where searches look: one file for each portal's shape, ``fetching`` for how all of them are asked.

``base`` says what a source is, ``addresses`` which addresses may be connected to, ``opening`` makes them.
"""
