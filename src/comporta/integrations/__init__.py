"""Adapters to other libraries. Each module needs one of them, except ``asgi`` and ``wsgi``, which need none.

- ``asgi``, ``wsgi``: middleware that limits inbound requests, for any ASGI or WSGI application.
- ``aiohttp_server``: the same for aiohttp servers.
- ``fastapi``: the same as a dependency of single routes, and exception handlers.
- ``inbound_limit``: the decision behind all of them; knows no web framework.
- ``client_ip``: the client's address, behind trusted proxies.
- ``celery``: a task class that is sent again when an upstream refuses a call.
- ``prometheus``, ``otel``: sinks for metrics.
"""
