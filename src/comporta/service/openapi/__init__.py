"""The OpenAPI document of the service.

- ``specification``: completes FastAPI's document with every status, content type and schema.
- ``public_schemas``, ``operator_schemas``: the schemas of responses. ``schema_types``: builds schemas.
"""
