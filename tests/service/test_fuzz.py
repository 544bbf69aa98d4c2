"""Generated requests, valid and invalid, against the OpenAPI document: all checks of schemathesis hold.

Among them: no server error, only documented statuses, content types and schemas, valid input is accepted,
invalid input is refused, and no route that needs a token answers without it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation.modes import GenerationMode
from tests.service.harness import TOKEN, serve_on_thread, service_config
from tests.support import SOAK

from comporta.service import auth_throttle
from comporta.service.app import create_app
from comporta.testing import ProcurementServer

EXAMPLES = 12 if SOAK else 2
ENDLESS = "/v1/dashboard/stream"
DAY = "2026-03-02"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}  # one check removes a header of exactly this name


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


def test_routes__arbitrary_input__pass_all_checks(app: FastAPI) -> None:
    with serve_on_thread(app) as (address, _):
        for mode in GenerationMode:
            operations = _operations(app, mode)
            assert len(operations) >= 24
            for operation in operations:
                _check_operation(address, operation, mode)


def _operations(app: FastAPI, mode: GenerationMode) -> list[Any]:
    """Return all operations; without their security for invalid input, which would lack the token only."""
    document = copy.deepcopy(app.openapi())
    for operations in document["paths"].values():
        for operation in operations.values():
            if mode is GenerationMode.NEGATIVE:
                operation.pop("security", None)
    del document["paths"][ENDLESS]  # it takes no input and does not end
    described = schemathesis.openapi.from_dict(document)
    return [each.ok() for each in described.get_all_operations()]  # type: ignore[union-attr]


def _check_operation(address: str, operation: Any, mode: GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: Any) -> None:
        if mode is GenerationMode.POSITIVE:
            _relate_fields(case)
        case.call_and_validate(base_url=address, headers=AUTHORIZED)

    with suppress(Unsatisfiable):  # a route without input has no invalid requests
        answered()


def _relate_fields(case: Any) -> None:
    """Give valid requests what JSON schema cannot express: printable text, fields that depend on others."""
    if "terms" in case.query:
        case.query["terms"] = ["obras"]
    if "user" in case.query and not case.path.startswith("/v1/admin"):
        case.query["user"] = "ana"
    if case.path == "/v1/admin/limits/{name}" and case.method == "PUT":
        case.body["limit"] = "20/s"
    if case.path == "/ultra-batch/jobs":
        case.body["accounts"] = [each if each.split() else "a" for each in case.body["accounts"]]
    if "date_from" in case.query:
        case.query["date_from"] = case.query["date_to"] = DAY
    if case.path.endswith("{params_hash}") and case.method == "DELETE":
        case.query["confirm"] = case.path_parameters["params_hash"]


def test_openapi__search__documents_its_answer(app: FastAPI) -> None:
    document = app.openapi()
    responses = document["paths"]["/v1/search"]["get"]["responses"]
    assert responses["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/SearchResponse")
    assert set(responses) == {"200", "422", "429", "503"}
    assert "HTTPValidationError" not in document["components"]["schemas"]
    assert "user_id" in document["components"]["schemas"]["SheetRequest"]["required"]
    assert app.openapi() is document


def test_openapi__with_tokens__documents_401_and_optional_users(tmp_path: Path) -> None:
    document = create_app(service_config(tmp_path, auth="tokens")).openapi()
    assert {"401", "403"} <= set(document["paths"]["/v1/search"]["get"]["responses"])
    assert "user_id" not in document["components"]["schemas"]["SheetRequest"]["required"]
