"""The coverage of a search by state (UF), and its JSON: ``{"succeeded_ufs": [...], ...}``.

The cache knows only units; this module decides that they are UFs and what their JSON looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from comporta.cache.coverage import Coverage

UNITS: Final = "ufs"


def uf_coverage(succeeded: Iterable[str], failed: Iterable[str] = (), total_requested: int = -1) -> Coverage:
    """Return the coverage of a search; the cache stores it with the field names of ``coverage_json``."""
    return Coverage(tuple(succeeded), tuple(failed), total_requested, units=UNITS)


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """Return ``{"succeeded_ufs": [...], "failed_ufs": [...], "total_requested": n}``."""
    return uf_coverage(coverage.succeeded, coverage.failed, coverage.total_requested).as_dict()
