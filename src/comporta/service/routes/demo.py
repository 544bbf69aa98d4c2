"""The switches of a demonstration: there only where the service was started for one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel

from comporta.service.dashboard.demo import Demo
from comporta.service.dashboard.doors import refuse_strangers
from comporta.service.problems import Problem
from comporta.service.routes.dashboard import Admitted

router = APIRouter(prefix="/v1/demo", tags=["demo"])


class NewMode(BaseModel):
    """How a portal is to behave from now on."""

    mode: Literal["ok", "slow", "flaky", "rate-limited", "dead"]


def switches(parts: Admitted) -> Demo:
    """Return the switches of whoever may look."""
    assert parts.demo is not None  # noqa: S101 - these routes are added with it
    return parts.demo


Switches = Annotated[Demo, Depends(switches)]


@router.get("")
async def shown(demo: Switches) -> dict[str, Any]:
    """How the simulated portals behave, and how they can."""
    return await demo.modes()


@router.put("/upstreams/{name}", dependencies=[Depends(refuse_strangers)])
async def switched(
    demo: Switches, name: Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,50}$")], body: NewMode
) -> dict[str, Any]:
    """Break a portal, or mend it."""
    known = (await demo.modes())["modes"]
    if name not in known:
        raise Problem(404, "Not Found", f"name must be one of {', '.join(known)}, got {name!r}", "name")
    await demo.set(name, body.mode)
    return await demo.modes()
