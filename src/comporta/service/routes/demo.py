"""Routes that control the simulated portals; only a demo has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel

from comporta.service.dashboard.auth import require_same_origin
from comporta.service.dashboard.demo_portals import DemoPortals
from comporta.service.problems import HttpProblem
from comporta.service.routes.dashboard import AuthorizedContainer

router = APIRouter(prefix="/v1/demo", tags=["demo"])


class PortalModeRequest(BaseModel):
    """The new mode of a portal."""

    mode: Literal["ok", "slow", "flaky", "rate-limited", "dead"]


def get_demo_portals(container: AuthorizedContainer) -> DemoPortals:
    """Return the simulated portals, for clients that may see the dashboard."""
    assert container.demo is not None  # noqa: S101 - only a demo has these routes
    return container.demo


DemoPortalsDep = Annotated[DemoPortals, Depends(get_demo_portals)]


@router.get("")
async def show_modes(demo: DemoPortalsDep) -> dict[str, Any]:
    """Show the mode of each simulated portal and the modes that exist."""
    return await demo.modes()


@router.put("/upstreams/{name}", dependencies=[Depends(require_same_origin)])
async def set_mode(
    demo: DemoPortalsDep,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,50}$")],
    body: PortalModeRequest,
) -> dict[str, Any]:
    """Set the mode of a portal."""
    modes = (await demo.modes())["modes"]
    if name not in modes:
        raise HttpProblem(404, "Not Found", f"name must be one of {', '.join(modes)}, got {name!r}", "name")
    await demo.set_mode(name, body.mode)
    return await demo.modes()
