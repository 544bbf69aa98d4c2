"""What operators may do, with the token: each action is written down before it is done (``audit.py``)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from comporta.breaker.breaker import CircuitBreaker
from comporta.limits.config import LimitConfig
from comporta.service import keys
from comporta.service.parts import Parts, parts_of
from comporta.service.problems import Problem
from comporta.upstream.upstream import Upstream

T = TypeVar("T")

EVERYTHING = "everything"
NO_CONTROLS = r"^[^\x00-\x1f\x7f]*$"
"""PostgreSQL takes no NUL in a text, and nobody's name has any of the others."""

_bearer = HTTPBearer(auto_error=False, description="The admin token of the service.")


class Operator:
    """Somebody who has the token; ``client`` is where they are."""

    def __init__(self, parts: Parts, client: str) -> None:
        self.parts = parts
        self.client = client

    async def do(self, action: str, target: str, work: Coroutine[Any, Any, T], detail: str = "") -> T:
        """Write down what is to be done, do it, and write down what came of it."""
        audit = self.parts.audit
        try:
            number = await audit.begun(action, target, detail, self.client)
        except BaseException:
            work.close()
            raise
        try:
            result = await work
        except BaseException as error:
            await audit.ended(number, f"failed: {type(error).__name__}")
            raise
        await audit.ended(number, "done")
        return result


async def admitted(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Operator:
    """Let in whoever has the token; without one in the configuration, nobody."""
    parts = parts_of(request)
    token = parts.config.admin_token
    if token is None:
        raise Problem(403, "Forbidden", "admin routes are off: no admin_token is configured")
    client = parts.admin_tries.client_of(request)
    if given is None:
        parts.admin_tries.refused(client)
    elif await parts.admin_tries.is_right(client, given.credentials, token):
        return Operator(parts, client)
    raise Problem(
        401,
        "Unauthorized",
        "the admin token must be sent as Authorization: Bearer <token>",
        headers={"www-authenticate": "Bearer"},
    )


OfOperator = Annotated[Operator, Depends(admitted)]
Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,100}$", description="An upstream.")]
Hash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The hash of a search's parameters.")]
User = Annotated[str, Query(min_length=1, max_length=200, pattern=NO_CONTROLS)]
AnyUser = Annotated[str | None, Query(min_length=1, max_length=200, pattern=NO_CONTROLS)]
Few = Annotated[int, Query(ge=1, le=1000)]

router = APIRouter(prefix="/v1/admin", tags=["admin"], dependencies=[Depends(admitted)])


class Why(BaseModel):
    """A reason, for those who wonder later."""

    why: str = Field(default="", max_length=200)


class NewLimit(BaseModel):
    """A limit as text: ``20/s``, ``100/minute burst 20``."""

    limit: str = Field(min_length=1, max_length=100)


class PauseFor(BaseModel):
    """For how long nothing may pass."""

    seconds: float = Field(gt=0, le=86_400, allow_inf_nan=False)


@router.post("/breakers/{name}/open")
async def open_breaker(operator: OfOperator, name: Name, body: Why) -> dict[str, Any]:
    """Hold a breaker open for all workers, until it is closed or reset."""
    breaker = _breaker(operator.parts, name)
    return await operator.do("open breaker", name, _forced(breaker, "open", body.why), body.why)


@router.post("/breakers/{name}/close")
async def close_breaker(operator: OfOperator, name: Name, body: Why) -> dict[str, Any]:
    """Hold a breaker closed for all workers, until it is opened or reset."""
    breaker = _breaker(operator.parts, name)
    return await operator.do("close breaker", name, _forced(breaker, "closed", body.why), body.why)


@router.post("/breakers/{name}/reset")
async def reset_breaker(operator: OfOperator, name: Name) -> dict[str, Any]:
    """Let a breaker decide by itself again, from the beginning: closed, no failures."""
    return await operator.do("reset breaker", name, _reset(_breaker(operator.parts, name)))


@router.put("/limits/{name}")
async def change_limit(operator: OfOperator, name: Name, body: NewLimit) -> dict[str, Any]:
    """Change the limit of an upstream for all workers, until it is changed again or revoked."""
    upstream = _upstream(operator.parts, name)
    try:
        limit = LimitConfig.parse(body.limit, upstream.limiter.strategy)
    except ValueError as error:
        raise Problem(422, "Unprocessable Content", str(error), "limit") from None
    return await operator.do("change limit", name, _changed(upstream, limit), body.limit)


@router.delete("/limits/{name}")
async def revoke_limit(operator: OfOperator, name: Name) -> dict[str, Any]:
    """Let the limit be again what the configuration says."""
    upstream = _upstream(operator.parts, name)
    return await operator.do("revoke limit", name, _changed(upstream, None))


@router.post("/upstreams/{name}/pause")
async def pause_upstream(operator: OfOperator, name: Name, body: PauseFor) -> dict[str, Any]:
    """Let nobody call an upstream for some time."""
    upstream = _upstream(operator.parts, name)
    detail = f"for {body.seconds:g} s"
    return await operator.do("pause", name, _paused(upstream, body.seconds), detail)


@router.post("/upstreams/{name}/resume")
async def resume_upstream(operator: OfOperator, name: Name) -> dict[str, Any]:
    """End a pause."""
    return await operator.do("resume", name, _paused(_upstream(operator.parts, name), 0))


@router.get("/cache/keys")
async def list_keys(
    operator: OfOperator, user: AnyUser = None, degraded: bool = False, limit: Few = 100
) -> dict[str, Any]:
    """What is kept, the freshest first; or only what is left alone for now."""
    return {"keys": await keys.listed(operator.parts, limit, user, degraded)}


@router.get("/cache/keys/{params_hash}")
async def show_key(operator: OfOperator, params_hash: Hash, user: User) -> dict[str, Any]:
    """How one key of a user fares."""
    found = await keys.shown(operator.parts, user, params_hash)
    if found is None:
        raise _no_key(params_hash)
    return found


@router.post("/cache/keys/{params_hash}/refresh")
async def refresh_key(operator: OfOperator, params_hash: Hash, user: AnyUser = None) -> dict[str, Any]:
    """Have a key fetched anew, now, whatever failed before."""
    work = keys.refreshed(operator.parts, params_hash, user)
    marked = await operator.do("refresh key", params_hash, work, user or "")
    if not marked:
        raise _no_key(params_hash)
    return {"marked": marked}


@router.delete("/cache/keys/{params_hash}")
async def remove_key(
    operator: OfOperator, params_hash: Hash, user: User, confirm: str = ""
) -> dict[str, Any]:
    """Remove what is kept for a user under a key; ``confirm`` must be the key once more."""
    _confirmed(confirm, params_hash)
    work = keys.removed(operator.parts, user, params_hash)
    if not await operator.do("remove key", params_hash, work, user):
        raise _no_key(params_hash)
    return {"removed": 1}


@router.delete("/cache/keys")
async def clear_cache(operator: OfOperator, confirm: str = "") -> dict[str, Any]:
    """Remove all that is kept; ``confirm`` must be ``everything``."""
    _confirmed(confirm, EVERYTHING)
    return {"removed": await operator.do("clear cache", "cache", keys.cleared(operator.parts))}


@router.post("/backfills/{job_id}/retry")
async def retry_backfill(
    operator: OfOperator, job_id: Annotated[str, Path(min_length=1, max_length=100, pattern=NO_CONTROLS)]
) -> dict[str, Any]:
    """Have a failed backfill begin again where it ended, in a new sheet if somebody removed it."""
    if operator.parts.retry_backfill is None:
        raise Problem(404, "Not Found", "there are no backfills here")
    result = await operator.do("retry backfill", job_id, operator.parts.retry_backfill(job_id))
    if not result:
        raise Problem(404, "Not Found", f"no backfill of the job {job_id} has failed", "job_id")
    return {"job_id": job_id, "result": result}


@router.get("/jobs")
async def list_jobs(operator: OfOperator, limit: Few = 100) -> dict[str, Any]:
    """Jobs with the whole of their names, the latest first: whoever has one may read its results."""
    return {"jobs": [job.told() for job in await operator.parts.batches.shown(limit)]}


@router.get("/whoami", status_code=204)
async def whoami() -> Response:
    """Nothing, to whoever has the token: so a page can try one."""
    return Response(None, 204)


@router.get("/audit")
async def audit(operator: OfOperator, limit: Few = 100) -> dict[str, Any]:
    """What operators did, the latest first."""
    return {"actions": [action._asdict() for action in await operator.parts.audit.latest(limit)]}


async def _forced(breaker: CircuitBreaker, how: str, why: str) -> dict[str, Any]:
    await breaker.force(how, why or "by an operator")
    return (await breaker.get_state()).as_dict()


async def _reset(breaker: CircuitBreaker) -> dict[str, Any]:
    await breaker.force(None)
    await breaker.reset()
    return (await breaker.get_state()).as_dict()


async def _changed(upstream: Upstream, limit: LimitConfig | None) -> dict[str, Any]:
    await upstream.limiter.change(limit)
    return (await upstream.get_state()).as_dict()


async def _paused(upstream: Upstream, seconds: float) -> dict[str, Any]:
    await (upstream.limiter.pause(seconds) if seconds else upstream.limiter.resume())
    return (await upstream.get_state()).as_dict()


def _upstream(parts: Parts, name: str) -> Upstream:
    if name not in parts.upstreams:
        known = ", ".join(parts.upstreams)
        raise Problem(404, "Not Found", f"name must be one of {known}, got {name!r:.100}", "name")
    return parts.upstreams[name]


def _breaker(parts: Parts, name: str) -> CircuitBreaker:
    breaker = _upstream(parts, name).breaker
    if breaker is None:
        raise Problem(404, "Not Found", f"{name} has no breaker", "name")
    return breaker


def _confirmed(given: str, wanted: str) -> None:
    if given != wanted:
        raise Problem(
            422, "Unprocessable Content", f"confirm must be {wanted!r}, got {given!r:.100}", "confirm"
        )


def _no_key(params_hash: str) -> Problem:
    return Problem(404, "Not Found", f"nothing is kept under {params_hash}", "params_hash")
