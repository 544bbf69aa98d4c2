"""SQL of leases on rows, in the common dialect of ``base.py``, and the names of their owners.

A row with a lease has the columns ``owner``, ``token`` and ``lease_until_us`` (microseconds of the database's
clock). The owner renews the lease while it works. After ``lease_until_us`` any process may claim the row.
"""

from __future__ import annotations

from typing import Final

from comporta.runtime import RUNTIME

NOW_US: Final = "CAST(:now * 1000000 AS BIGINT)"
LEASE_UNTIL: Final = f"{NOW_US} + CAST(:lease_us AS BIGINT)"

UNLEASED: Final = f"(lease_until_us <= {NOW_US} OR lease_until_us > {NOW_US} + 2 * CAST(:lease_us AS BIGINT))"
"""A lease that ends later than any lease can was written before the clock was set back: it has expired."""

_HOST_CHARS_MAX = 50


def lease_owner() -> str:
    """Return a unique name for this process as the owner of leases: its host, its pid and 8 hex digits."""
    return f"{RUNTIME.host()[:_HOST_CHARS_MAX]}-{RUNTIME.pid()}-{RUNTIME.random_bytes(4).hex()}"
