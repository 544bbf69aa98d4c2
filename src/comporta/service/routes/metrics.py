"""The metrics page for Prometheus."""

from __future__ import annotations

import hmac

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from comporta.service.container import ContainerDep
from comporta.service.problems import HttpProblem

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, container: ContainerDep) -> Response:
    """Metrics of all workers that one ``comporta serve`` started, and of the state that all workers share."""
    token = container.config.metrics_token
    given = request.headers.get("authorization", "").encode("utf-8", "replace")
    if token is not None and not hmac.compare_digest(given, f"Bearer {token}".encode()):
        detail = "the metrics token must be sent as Authorization: Bearer <token>"
        raise HttpProblem(401, "Unauthorized", detail, headers={"www-authenticate": "Bearer"})
    return Response(await container.metrics.render(container), media_type=CONTENT_TYPE_LATEST)
