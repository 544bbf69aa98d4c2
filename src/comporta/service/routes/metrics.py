"""Figures for Prometheus."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST

from comporta.service.parts import Parts, parts_of

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=Response)
async def metrics(parts: Annotated[Parts, Depends(parts_of)]) -> Response:
    """Figures of all workers that are served together, and of what all workers share."""
    return Response(await parts.figures.page(parts), media_type=CONTENT_TYPE_LATEST)
