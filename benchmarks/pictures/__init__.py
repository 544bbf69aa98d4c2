"""The pictures of the guides: the real policies on simulated time, drawn as SVG.

``make pictures`` redraws all of them into ``docs/pictures``. Each scene runs a load through comporta's own
code and records the result. Time is simulated (``simulated.py``), so a scene takes moments and gives the same
bytes every time; ``tests/surface/test_pictures.py`` compares them with the committed files. The only
exception is the outage, which needs real servers and a real minute.
"""
