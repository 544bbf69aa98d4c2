"""The dashboard: one page that shows the whole fleet, whichever worker serves it.

- ``dashboard``: the objects that its routes use.
- ``document``: builds what the page shows. ``database_snapshot`` reads the part that is in the database,
  ``status_memory`` keeps the last known fleet status for an outage of the store, ``redaction`` removes what
  only operators may see.
- ``live``: sends documents, and what changed in them (``document_changes``), to open pages.
- ``static_files``: the page and its files, in ``page/``.
- ``auth``: who may see it.
- ``demo_portals``: controls the simulated portals of a demo.
"""
