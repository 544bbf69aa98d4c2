"""Health routes, for people, load balancers and monitoring.

``/livez``: the process responds. ``/readyz``: it accepts requests, which ends with shutdown. Neither depends
on what all workers share: otherwise one outage would remove all workers from the load balancer.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from comporta.service.container import ContainerDep
from comporta.service.health import FAIL, read_cache_health
from comporta.service.problems import HttpProblem

router = APIRouter(tags=["health"])


@router.get("/v1/health")
async def health(container: ContainerDep, response: Response) -> dict[str, Any]:
    """Health of sources, limits, workers, store and database, read from what all workers share."""
    document = await container.health.get(container)
    response.status_code = 503 if document["status"] == FAIL else 200
    response.headers["cache-control"] = "no-store"
    return document


@router.get("/v1/health/cache")
async def cache_health(container: ContainerDep) -> dict[str, Any]:
    """Health of the cached keys."""
    return await read_cache_health(container)


@router.get("/livez")
async def live() -> dict[str, str]:
    """Whether this process responds."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(container: ContainerDep) -> dict[str, str]:
    """Whether this process accepts requests."""
    if container.is_draining or container.shutting_down.is_set():
        raise HttpProblem(503, "Service Unavailable", "this worker is shutting down", retry_after=1)
    return {"status": "ok"}
