"""How the service and its sources fare, for people, load balancers and the like.

``/livez``: the process answers. ``/readyz``: give it requests; not while it is ending. What all workers share
is no part of either: if it were, its failure would take all of them out at once.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from comporta.service.health import FAIL, cache_health_of, health_of
from comporta.service.parts import Parts, parts_of
from comporta.service.problems import Problem

router = APIRouter(tags=["health"])

OfApp = Annotated[Parts, Depends(parts_of)]


@router.get("/v1/health")
async def health(parts: OfApp, response: Response) -> dict[str, Any]:
    """How sources, limits, workers, state and database fare, from what all workers share."""
    found = await health_of(parts)
    response.status_code = 503 if found["status"] == FAIL else 200
    response.headers["cache-control"] = "no-store"
    return found


@router.get("/v1/health/cache")
async def cache_health(parts: OfApp) -> dict[str, Any]:
    """How the keys of the cache fare."""
    return await cache_health_of(parts)


@router.get("/livez")
async def live() -> dict[str, str]:
    """Whether this process answers at all."""
    return {"status": "ok"}


@router.get("/readyz")
async def ready(parts: OfApp) -> dict[str, str]:
    """Whether this process wants requests."""
    if parts.leaving.is_set():
        raise Problem(503, "Service Unavailable", "this worker is ending", retry_after=1)
    return {"status": "ok"}
