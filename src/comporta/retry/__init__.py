"""Trying again: how long to wait, how often, and how much of that the whole fleet may do.

``backoff.py`` is the pure arithmetic of the waits, ``budget.py`` (beside its Lua twin) what the fleet may
spend on retries, ``retry.py`` the face users call.
"""

from comporta.retry.backoff import IDEMPOTENT_METHODS, Backoff, Delays
from comporta.retry.budget import Budget, RetryBudget
from comporta.retry.retry import Retry

__all__ = ["IDEMPOTENT_METHODS", "Backoff", "Budget", "Delays", "Retry", "RetryBudget"]
