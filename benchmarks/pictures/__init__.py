"""The pictures of the guides: the real policies on simulated time, drawn as SVG.

``make pictures`` draws all of them anew into ``docs/pictures``. Nothing in them is made up: each scene plays
a load through comporta's own code and notes what came of it. Time is simulated (``simulated.py``), so a scene
takes moments and gives the same bytes each time; ``tests/surface/test_pictures.py`` holds the committed files
to that. The one exception is the minute of outages, which needs real servers and real seconds.
"""
