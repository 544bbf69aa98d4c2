"""The metrics page, and the Grafana dashboard that uses it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.service.harness import ROOT, async_test, run_service

from comporta import Loaded

GRAFANA_DASHBOARD = ROOT / "docs" / "operations" / "grafana.json"
_ENDINGS = ("_bucket", "_count", "_sum", "_total", "_created")


def metric_names(page: str) -> set[str]:
    return {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}


def grafana_metric_names() -> set[str]:
    board = json.loads(GRAFANA_DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 20
    plain = [re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", "", text) for text in expressions]
    words = {word for text in plain for word in re.findall(r"[a-z_]{4,}", text)}
    return words - {"histogram_quantile", "increase", "rate"}


def documented_metrics() -> dict[str, str]:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    return dict(re.findall(r"^\| `([a-z_]+)` \| (counter|histogram|gauge)", text, re.MULTILINE))


@async_test
async def test_metrics_page__after_some_use__has_every_metric_of_the_grafana_dashboard(
    tmp_path: Path,
) -> None:
    async def answer() -> int:
        return 1

    async def fail() -> int:
        raise ConnectionError

    async with run_service(tmp_path, COMPORTA_UPSTREAM_PCP_RETRY="false") as service:
        upstream = service.container.upstreams["pcp"]
        await upstream.call(answer)
        assert upstream.breaker is not None
        await upstream.breaker.force("open")
        await upstream.breaker.force(None)
        await service.container.cache.fetch("ana", {"uf": "SP"}, lambda: Loaded([1]))
        await upstream.limiter.pause(1)
        await service.client.get("/v1/health")
        page = (await service.client.get("/metrics")).text
    counted = metric_names(page)
    kinds = documented_metrics()
    endings = {"counter": ("_total",), "histogram": ("_bucket",), "gauge": ("",)}
    documented = {f"{name}{ending}" for name, kind in kinds.items() for ending in endings[kind]}
    assert grafana_metric_names() <= documented
    gauges = {name for name in documented if name.startswith("comporta_")}
    assert gauges == {name for name in counted if name.startswith("comporta_")}
    ours = {name.removesuffix(next(filter(name.endswith, _ENDINGS), "")) for name in counted}
    assert ours <= {*kinds}
    assert {"upstream_calls_total", "http_requests_total", "cache_answers_total", "events_total"} <= counted


def test_grafana_dashboard__every_panel__queries_the_chosen_data_source() -> None:
    board = json.loads(GRAFANA_DASHBOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])


def test_grafana_dashboard__exported__contains_no_address(tmp_path: Path) -> None:
    assert "://" not in GRAFANA_DASHBOARD.read_text()


@async_test
async def test_metrics_page__several_workers__sums_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", tempfile.mkdtemp(dir=tmp_path))
    async with run_service(tmp_path) as service:
        await service.client.get("/livez")
        page = (await service.client.get("/metrics")).text
    assert "comporta_workers 1.0" in page
    assert "http_requests_total" not in page  # this process has no file there
