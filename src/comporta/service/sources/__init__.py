"""The portals that searches query.

- ``base``: the interface of a source and the common form of a notice.
- ``pncp``, ``pcp``: the request and response formats of each portal. ``portal``: what all portals share.
- ``ssrf_guard``: refuses addresses on private networks.
- ``last_answers``: what each portal answered last, as all workers know it.
- ``factory``: opens the sources from the configuration.
"""
