"""Figures for Prometheus, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.running import ROOT, awaited, running

from comporta import Loaded

BOARD = ROOT / "docs" / "grafana.json"
_ENDINGS = ("_bucket", "_count", "_sum", "_total", "_created")


def names_on(page: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}


def names_in_board() -> set[str]:
    board = json.loads(BOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    plain = [re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", text) for text in expressions]
    words = {word for text in plain for word in re.findall(r"[a-z_]{4,}", text)}
    return words - {"histogram_quantile", "increase", "rate"}


def documented() -> dict[str, str]:
    text = (ROOT / "docs" / "metrics.md").read_text()
    return dict(re.findall(r"^\| `([a-z_]+)` \| (counter|histogram|gauge)", text, re.MULTILINE))


@awaited
async def test_page__after_some_use__has_what_the_dashboard_shows(tmp_path: Path) -> None:
    async def answer() -> int:
        return 1

    async def fail() -> int:
        raise ConnectionError

    async with running(tmp_path, COMPORTA_UPSTREAM_PCP_RETRY="false") as asked:
        upstream = asked.parts.upstreams["pcp"]
        await upstream.call(answer)
        assert upstream.breaker is not None
        await upstream.breaker.force("open")
        await upstream.breaker.force(None)
        await asked.parts.cache.fetch("ana", {"uf": "SP"}, lambda: Loaded([1]))
        await upstream.limiter.pause(1)
        await asked.client.get("/v1/health")
        page = (await asked.client.get("/metrics")).text
    counted = names_on(page)
    kinds = documented()
    endings = {"counter": ("_total",), "histogram": ("_bucket",), "gauge": ("",)}
    told = {f"{name}{ending}" for name, kind in kinds.items() for ending in endings[kind]}
    assert names_in_board() <= told
    gauges = {name for name in told if name.startswith("comporta_")}
    assert gauges == {name for name in counted if name.startswith("comporta_")}
    ours = {name.removesuffix(next(filter(name.endswith, _ENDINGS), "")) for name in counted}
    assert ours <= {*kinds}
    assert {"upstream_calls_total", "http_requests_total", "cache_answers_total", "events_total"} <= counted


def test_dashboard__every_panel__asks_something_of_the_chosen_source() -> None:
    board = json.loads(BOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])


def test_dashboard__no_address__is_in_it(tmp_path: Path) -> None:
    assert "://" not in BOARD.read_text()


@awaited
async def test_page__served_together__is_made_of_the_files_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(dir=tmp_path))
    async with running(tmp_path) as asked:
        await asked.client.get("/livez")
        page = (await asked.client.get("/metrics")).text
    assert "comporta_workers 1.0" in page
    assert "http_requests_total" not in page  # this process was started without, and has no file there
