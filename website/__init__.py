"""Builds the documentation site: ``make docs``.

- ``__main__``: copies the pages, writes the API pages and runs Sphinx; a warning fails the build.
- ``api``: which public name is described on which page of the API reference.
- ``navigation``: the sections of the sidebar.
- ``source``: copies the Markdown pages as they are on GitHub, and adapts the few places that differ.
- ``conf``: the configuration of Sphinx; ``style.css``: a few rules on top of the theme.
"""
