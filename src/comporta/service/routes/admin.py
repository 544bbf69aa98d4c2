"""What operators may do, with the token."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter()
