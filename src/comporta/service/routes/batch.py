"""Jobs over many accounts, and the sheets they fill."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
