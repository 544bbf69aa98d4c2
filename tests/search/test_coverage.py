"""The coverage of a search by UF, and its JSON in responses and in the cache's table."""

from __future__ import annotations

import json
from pathlib import Path

from comporta import Coverage, HealthCache
from comporta.service.search.coverage import coverage_json, uf_coverage

SEVEN = {"succeeded_ufs": list("ABCDEFG"), "failed_ufs": ["H", "I"], "total_requested": 9}


def test_coverage_json__any_coverage__names_the_ufs() -> None:
    assert coverage_json(Coverage(tuple("ABCDEFG"), ("H", "I"), 9)) == SEVEN
    assert coverage_json(uf_coverage("ABCDEFG", "HI")) == SEVEN


def test_save_to_cache__uf_coverage__is_stored_as_that_json_and_read_back(tmp_path: Path) -> None:
    cache = HealthCache(f"sqlite:///{tmp_path}/x.db", state="memory://")
    for params, coverage in (({"q": 1}, SEVEN), ({"q": 2}, uf_coverage("ABCDEFG", "HI"))):
        assert cache.sync.save_to_cache("ana", params, [], coverage=coverage)
        cached = cache.sync.get_from_cache("ana", params)
        assert cached is not None
        assert cached.coverage is not None
        assert coverage_json(cached.coverage) == SEVEN
        assert str(cached.coverage) == "7 of 9"
        row = cache._core._tables.read("ana", cached.params_hash)
        assert row is not None
        assert json.loads(row.coverage or b"") == SEVEN
    cache.sync.close()
