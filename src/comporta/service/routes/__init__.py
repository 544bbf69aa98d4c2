"""The routes of the service, one module for each group of paths; each module has a ``router``.

- ``search``: searches, as one response or as a stream of server-sent events.
- ``batch``: batch jobs, and the configuration of their sheets. ``sheets``: downloads of sheets.
- ``health``, ``metrics``: health for people and load balancers, metrics for Prometheus.
- ``dashboard``: the dashboard page, its files and its live data.
- ``admin``: operator actions, which need the admin token.
- ``demo``: controls the simulated portals of a demo.
"""
