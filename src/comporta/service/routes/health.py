"""How the service and its sources fare."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
