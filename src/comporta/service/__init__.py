"""HTTP service: a search that survives failing sources, batch jobs, and a dashboard. Needs extra ``service``.

- ``config``: the settings of the service, validated once.
- ``container``: the objects that routes share, opened at startup and closed at shutdown.
- ``app``: builds the FastAPI application. ``server`` runs it with uvicorn, ``listener`` opens its socket.
- ``supervisor``: starts, replaces and ends the processes of ``comporta serve``. ``worker``: one of them.
- ``logs``: the format of log lines.
- ``middleware``: client limits, body size and request metrics, in front of all routes.
- ``openapi``: the OpenAPI document with every response.
- ``problems``: error responses as problem+json. ``server_sent_events``: the format of streams.
- ``identity``: who sends a request. ``tokens``: API tokens.
- ``auth_throttle``, ``auth_log``: limit wrong tokens and report them as events.
- ``audit``: the log of operator actions. ``cache_admin``: operator actions on cache keys.
- ``upstream_admin``: operator actions on upstreams, of the service and of other programs.
- ``disk_check``: whether directories can be written. ``database_outage``: logs an outage once.
- ``health``, ``metrics``: contents of ``/v1/health`` and ``/metrics``.
- ``migrations``: all tables of the service.
- ``routes/``: one module for each group of paths.
- ``search/``, ``sources/``: searches and the portals that they query.
- ``batch/``: jobs and their sheets.
- ``dashboard/``: the live page.
"""
