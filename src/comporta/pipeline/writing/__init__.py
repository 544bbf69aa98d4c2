"""Rows gathered into batches for a sink: ``writer.py`` is the face, ``gathering.py`` the inside."""
