"""Interfaces of older limiters and breakers on top of the new ones.

Call sites can migrate one at a time.

- ``limiters``: ``TokenBucket`` and ``RateLimiter``
- ``breakers``: ``RedisCircuitBreaker``, ``PNCPCircuitBreaker`` and ``RedisRateLimiter``
"""
