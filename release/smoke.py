"""One program for each extra. It runs where only comporta and the packages of that extra are installed."""

from __future__ import annotations

CORE = """
from importlib.metadata import distributions
from comporta import CircuitBreaker, Retry, TokenBucketLimiter, Upstream

limiter = TokenBucketLimiter("2/minute", state="memory://").sync
assert [limiter.acquire("user:42") for _ in range(3)] == [True, True, False]
upstream = Upstream("api", limit="10/s", state="memory://")
assert upstream.sync.call(lambda: "an answer") == "an answer"
assert CircuitBreaker("api-2", state="memory://").is_degraded is False
assert Retry().sync.call(lambda: 1) == 1
"""

PROGRAMS: dict[str, str] = {
    "": CORE
    + """
names = {each.metadata["Name"] for each in distributions()}
assert names <= {"comporta", "pip", "setuptools"}, names
""",
    "redis": """
from comporta import RedisLimiter

limiter = RedisLimiter("10/s", "redis://127.0.0.1:1/0?timeout=0.05", "orders").sync
assert limiter.acquire("user:42", timeout=5)  # no server listens there: the share of this worker decides
""",
    "httpx2": """
import httpx2
from comporta import Upstream
from comporta.testing import SimulatedUpstream

upstream = Upstream("api", limit="10/s", state="memory://")
with SimulatedUpstream() as server, httpx2.Client(transport=upstream.sync.transport()) as client:
    assert client.get(server.url).status_code == 200
""",
    "httpx": """
import httpx
from comporta import Upstream
from comporta.testing import SimulatedUpstream

upstream = Upstream("api", limit="10/s", state="memory://")
transport = upstream.sync.transport(client="httpx")
with SimulatedUpstream() as server, httpx.Client(transport=transport) as client:
    assert client.get(server.url).status_code == 200
""",
    "requests": """
import requests
from comporta import Upstream
from comporta.testing import SimulatedUpstream

upstream = Upstream("api", limit="10/s", state="memory://")
with SimulatedUpstream() as server, requests.Session() as session:
    session.mount("http://", upstream.sync.adapter())
    assert session.get(server.url, timeout=30).status_code == 200
""",
    "aiohttp": """
import asyncio
import aiohttp
from comporta import Upstream
from comporta.testing import SimulatedUpstream

async def main():
    upstream = Upstream("api", limit="10/s", state="memory://")
    with SimulatedUpstream() as server:
        async with aiohttp.ClientSession(middlewares=[upstream.middleware()]) as session:
            async with session.get(server.url) as response:
                assert response.status == 200

asyncio.run(main())
""",
    "celery": "from comporta.integrations.celery import RefusalRetryTask, refusal_countdown\n",
    "fastapi": """
from fastapi import FastAPI
from comporta.integrations.fastapi import RateLimited, add_problem_handlers

add_problem_handlers(FastAPI())
""",
    "postgres": """
import psycopg
from comporta.pipeline.sinks import PostgresSink
""",
    "cache": """
from comporta import HealthCache

cache = HealthCache("sqlite:///smoke.db").sync
assert cache.fetch("ana", {"q": 1}, lambda: [1]).value == [1]
cache.close()
""",
    "sheets": """
import googleapiclient.discovery
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
""",
    "xlsx": """
from comporta import BatchWriter
from comporta.pipeline.sinks import XlsxSink

with BatchWriter(XlsxSink("smoke.xlsx")).sync as writer:
    writer.write({"a": 1})
""",
    "otel": """
from comporta.integrations.otel import OpenTelemetryMetrics
from comporta.metrics import use_metrics

use_metrics(OpenTelemetryMetrics())
"""
    + CORE,
    "prometheus": """
from comporta.integrations.prometheus import PrometheusMetrics
from comporta.metrics import use_metrics

use_metrics(PrometheusMetrics())
"""
    + CORE,
    "cli": """
import subprocess, sys
from pathlib import Path

command = Path(sys.executable).with_name("comporta")
assert "comporta" in subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
subprocess.run([command, "top", "shared://comporta-smoke", "--once"], check=True, capture_output=True)
""",
    "service": """
import asyncio
import httpx2
from comporta.service.app import create_app
from comporta.service.config import ServiceConfig

async def main():
    variables = {"COMPORTA_STATE": "memory://app", "COMPORTA_SERVICE_DATABASE": "sqlite:///service.db"}
    app = create_app(ServiceConfig.load(environ=variables))
    async with app.router.lifespan_context(app):
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x") as client:
            assert (await client.get("/livez")).status_code == 200
            assert "<html" in (await client.get("/")).text

asyncio.run(main())
""",
    "simulation": """
from comporta.simulation import run_seed

run_seed(1)
""",
    "lua": "import lupa.lua51\n",
    "all": CORE + "import comporta.cli, comporta.service.app, comporta.simulation\n",
}
"""Extra: its program. The empty name is the package without extras."""
