"""Retries: how many, how long to wait before each, and how many all workers together may make.

- ``attempts``: what hooks and the called function can read about an attempt
- ``backoff``: the delays, as arithmetic without a clock
- ``budget`` and ``budget.lua``: the bound on the retries of all workers
- ``retry``: the public class, ``Retry``
"""

from comporta.retry.attempts import RetryAttempt, current_attempt
from comporta.retry.backoff import IDEMPOTENT_METHODS, Backoff, Delays
from comporta.retry.budget import Budget, RetryBudget
from comporta.retry.retry import Retry

__all__ = [
    "IDEMPOTENT_METHODS",
    "Backoff",
    "Budget",
    "Delays",
    "Retry",
    "RetryAttempt",
    "RetryBudget",
    "current_attempt",
]
