"""The metrics page for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from comporta.service.container import ContainerDep

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(container: ContainerDep) -> Response:
    """Metrics of all workers that one ``comporta serve`` started, and of the state that all workers share."""
    return Response(await container.metrics.render(container), media_type=CONTENT_TYPE_LATEST)
