"""HTTP service: a search that survives failing sources, batch jobs, and a dashboard. Needs extra ``service``.

- ``config``: the settings of the service, validated once.
- ``container``: the objects that routes share, opened at startup and closed at shutdown.
- ``app``: builds the FastAPI application. ``server`` runs it with uvicorn, ``listener`` opens its socket.
- ``middleware``: client limits, body size and request metrics, in front of all routes.
- ``problems``: error responses as problem+json.
- ``auth_throttle``, ``auth_log``: limit wrong tokens and report them as events.
- ``audit``: the log of operator actions. ``cache_admin``: operator actions on cache keys.
- ``health``, ``metrics``: contents of ``/v1/health`` and ``/metrics``.
- ``migrations``: all tables of the service.
- ``routes/``: one module for each group of paths.
- ``search/``, ``sources/``: searches and the portals that they query.
- ``batch/``: jobs and their sheets.
- ``dashboard/``: the live page.
"""
