"""Generated requests, valid and invalid: the service never returns a 500, and every error is a problem."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation.modes import GenerationMode
from starlette.testclient import TestClient
from tests.service.harness import OPERATOR, TOKEN, service_config
from tests.support import SOAK

from comporta.service.app import create_app

EXAMPLES = 12 if SOAK else 2
ONCE = {"COMPORTA_UPSTREAM_PNCP_RETRY": "false", "COMPORTA_UPSTREAM_PCP_RETRY": "false"}
"""The sources are unreachable here, so retries would only take time."""


def test_routes__arbitrary_input__never_fails_with_500(tmp_path: Path) -> None:
    """With the admin token, because other requests end at authentication."""
    app = create_app(service_config(tmp_path, admin_token=TOKEN, client_limit="false", **ONCE))
    with TestClient(app, raise_server_exceptions=False) as client:
        described = schemathesis.openapi.from_dict(app.openapi())
        operations: list[Any] = [each.ok() for each in described.get_all_operations()]  # type: ignore[union-attr]
        assert len(operations) >= 24
        for operation in operations:
            if operation.path == "/v1/dashboard/stream":
                continue  # it takes no input and does not end
            for mode in GenerationMode:
                _check_operation(client, operation, mode)


def _check_operation(client: TestClient, operation: Any, mode: GenerationMode) -> None:
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
        case.headers = {**(case.headers or {}), **OPERATOR}
        sent = case.as_transport_kwargs(base_url="http://testserver")
        sent.pop("cookies", None)
        if "data" in sent:
            sent["content"] = sent.pop("data")
        reply = client.request(**sent)
        assert reply.status_code not in {500, 502}, f"{case.method} {case.path}: {reply.text}"
        if reply.status_code >= 400:
            assert reply.headers["content-type"] == "application/problem+json"

    with suppress(Unsatisfiable):  # a route without input has no invalid requests
        answered()
