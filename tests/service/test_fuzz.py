"""The OpenAPI document against the service, with schemathesis: all checks hold.

Among them: no server error, only documented statuses, content types and schemas, valid input is accepted,
invalid input is refused, and no route that needs a token answers without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from fastapi import FastAPI
from tests.service.harness import PATIENCE_SECONDS, ROOT, TOKEN, serve_on_thread, service_config
from tests.support import SOAK

from comporta.service import auth_throttle
from comporta.service.app import create_app
from comporta.testing import ProcurementServer

EXAMPLES = 100 if SOAK else 5
ENDLESS = "/v1/dashboard/stream"
DAY = "2026-03-02"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FastAPI]:
    """Yield a service whose portals answer, with one token for everything that needs one."""
    for name in ("OWN_LIMIT", "CLIENT_LIMIT", "TOTAL_LIMIT"):
        monkeypatch.setattr(auth_throttle, name, "1000000/s")  # one check sends wrong tokens only
    with ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        config = service_config(
            tmp_path,
            admin_token=TOKEN,
            dashboard_token=TOKEN,
            metrics_token=TOKEN,
            client_limit="false",
            addresses_pncp=portals.pncp.url,
            addresses_pcp=portals.pcp.url,
            allow_private_addresses="true",
            batch_processor="tests.service.test_identity:echo",
            COMPORTA_UPSTREAM_PNCP_LIMIT="1000000/s",
            COMPORTA_UPSTREAM_PCP_LIMIT="1000000/s",
        )
        yield create_app(config)


@pytest.mark.unmeasured
def test_routes__schemathesis_run_with_all_checks__finds_no_failure(app: FastAPI, tmp_path: Path) -> None:
    with serve_on_thread(app) as (address, _):
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"),
            *("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful", "--continue-on-failure"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-database", "none"),
            *("--exclude-path", ENDLESS, "--header", f"Authorization: Bearer {TOKEN}", "--no-color"),
        ]
        hooks = {"SCHEMATHESIS_HOOKS": "tests.service.schemathesis_hooks", "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | hooks,
            capture_output=True,
            text=True,
            timeout=60 * PATIENCE_SECONDS,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2000:]
    [operations] = re.findall(r"Tested: (\d+)", ran.stdout)
    [cases] = re.findall(r"(\d+) generated", ran.stdout)
    assert (int(operations), int(cases) > 1000) == (len(list(_operations(app))) - 1, True)


def _operations(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method, the path and the description of every operation."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            yield method, path, operation


def test_routes__with_something_to_show__return_what_their_schemas_say(app: FastAPI) -> None:
    described = schemathesis.openapi.from_dict(app.openapi())
    shown: set[tuple[str, str]] = set()

    with serve_on_thread(app) as (address, _):
        app.state.container.batches.whitelist.set_user("ana", digital=True)

        def call(method: str, template: str, *, json: Any = None, query: Any = None, **path: str) -> Any:
            url = address + template.format(**path)
            response = requests.request(
                method, url, headers=AUTHORIZED, json=json, params=query, timeout=PATIENCE_SECONDS
            )
            assert response.status_code in {200, 204}, response.text
            described[template][method].validate_response(response)
            shown.add((method.lower(), template))
            is_json = response.headers.get("content-type") == "application/json"
            return response.json() if is_json else response.text

        days = {"date_from": DAY, "date_to": DAY, "ufs": "SP,RJ"}
        assert call("GET", "/v1/search", query=days)["notices"]
        assert "event: result" in call("GET", "/v1/search/stream", query=days)
        lines = call("POST", "/ultra-batch/jobs", json={"accounts": ["a", "b"], "job_id": "j"})
        assert len(lines.splitlines()) == 4
        assert call("GET", "/ultra-batch/jobs/{job_id}", job_id="j")["results"]
        user = {"user_id": "ana"}
        assert call("POST", "/ultra-batch/check-whitelist", json=user) == {"authorized": True}
        sheet = call("POST", "/ultra-batch/configure-sheets", json={"job_id": "j", **user})
        call("GET", "/ultra-batch/sheets-config/{job_id}", job_id="j")
        for kind in ("csv", "xlsx"):
            call("GET", f"/ultra-batch/sheets/{{sheet_id}}.{kind}", sheet_id=sheet["spreadsheet_id"])
        call("GET", "/v1/admin/upstreams")
        for action in ("open", "close", "reset"):
            body = None if action == "reset" else {"reason": "a test"}
            call("POST", f"/v1/admin/breakers/{{name}}/{action}", json=body, name="pncp")
        call("PUT", "/v1/admin/limits/{name}", json={"limit": "20/s burst 5"}, name="pncp")
        call("DELETE", "/v1/admin/limits/{name}", name="pncp")
        call("POST", "/v1/admin/upstreams/{name}/pause", json={"seconds": 60}, name="pncp")
        for path in ("/v1/health", "/v1/health/cache", "/v1/dashboard", "/v1/dashboard/history"):
            call("GET", path)
        call("POST", "/v1/admin/upstreams/{name}/resume", name="pncp")
        keys = call("GET", "/v1/admin/cache/keys")["keys"]
        key = next(each for each in keys if each["user_id"] == "anonymous")
        named = {"params_hash": key["params_hash"]}
        query = {"user": "anonymous"}
        call("GET", "/v1/admin/cache/keys/{params_hash}", query=query, **named)
        call("POST", "/v1/admin/cache/keys/{params_hash}/refresh", query=query, **named)
        confirm = {**query, "confirm": key["params_hash"]}
        call("DELETE", "/v1/admin/cache/keys/{params_hash}", query=confirm, **named)
        call("DELETE", "/v1/admin/cache/keys", query={"confirm": "everything"})
        for path in ("/v1/admin/jobs", "/v1/admin/audit", "/v1/admin/whoami"):
            call("GET", path)
        for path in ("/livez", "/readyz", "/metrics"):
            call("GET", path)
    others = {(method, path) for method, path, _ in _operations(app)} - shown
    assert others == {("get", ENDLESS), ("post", "/v1/admin/backfills/{job_id}/retry")}


def test_openapi__every_response__has_a_schema_that_says_something(app: FastAPI) -> None:
    document = app.openapi()
    shallow = [
        f"component {name}" for name, each in document["components"]["schemas"].items() if _is_shallow(each)
    ]
    for method, path, operation in _operations(app):
        for status, response in operation["responses"].items():
            content = response.get("content", {})
            assert bool(content) == (status != "204"), (method, path, status)
            shallow += [
                f"{method} {path} {status} {media_type}"
                for media_type, described in content.items()
                if _is_shallow(described.get("schema", {}))
            ]
    assert shallow == []


def _is_shallow(schema: dict[str, Any]) -> bool:
    """Whether a schema, or a part of it, allows any object or a list of anything."""
    if schema.get("type") == "object" and "properties" not in schema and "additionalProperties" not in schema:
        return True
    if schema.get("type") == "array" and "items" not in schema:
        return True
    parts = [*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")]
    parts += [*schema.get("oneOf", ()), *schema.get("anyOf", ()), schema.get("contentSchema")]
    return not schema or any(_is_shallow(part) for part in parts if isinstance(part, dict) and part)


def test_openapi__search__documents_its_answer(app: FastAPI) -> None:
    document = app.openapi()
    responses = document["paths"]["/v1/search"]["get"]["responses"]
    assert responses["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/SearchResponse")
    assert set(responses) == {"200", "422", "429", "500", "503"}
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "user_id" in document["components"]["schemas"]["SheetRequest"]["required"]
    assert app.openapi() is document


def test_openapi__with_tokens__documents_401_and_optional_users(tmp_path: Path) -> None:
    document = create_app(service_config(tmp_path, auth="tokens")).openapi()
    assert {"401", "403"} <= set(document["paths"]["/v1/search"]["get"]["responses"])
    assert "user_id" not in document["components"]["schemas"]["SheetRequest"]["required"]


def test_method__not_allowed__names_the_methods_of_all_routes_of_the_path(app: FastAPI) -> None:
    with serve_on_thread(app) as (address, _), httpx2.Client(base_url=address) as client:
        replies = [
            client.options(path) for path in ("/v1/admin/limits/pncp", "/v1/admin/cache/keys", "/v1/search")
        ]
    assert [reply.status_code for reply in replies] == [405] * 3
    assert [reply.headers["allow"] for reply in replies] == ["PUT, DELETE", "GET, DELETE", "GET, HEAD"]
