"""Builds the archives of a release and tries them as a user would: ``make dist``.

- ``__main__``: builds sdist and wheel, checks them, and writes the bill of materials.
- ``contents``: what the archives must and must not contain.
- ``smoke``: one program for each extra, which runs in an empty environment.
"""
