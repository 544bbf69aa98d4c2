"""A source, a step, a sink: ``pipeline.py`` is the face, ``running.py`` one run of it."""
