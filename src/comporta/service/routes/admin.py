"""Admin routes. They need the admin token, and every action is logged before it runs (``audit``)."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

from comporta.breaker.breaker import CircuitBreaker
from comporta.fleet.event_journal import RESET_BREAKER
from comporta.fleet.overrides import current_summary_flow
from comporta.fleet.reader import fleet_status_flow
from comporta.flow import run_async
from comporta.service import cache_admin
from comporta.service.container import Container, get_container
from comporta.service.dashboard.document import upstream_summaries
from comporta.service.health import read_source_answers, read_upstream_states
from comporta.service.problems import HttpProblem
from comporta.service.search.query import NO_CONTROL_CHARS
from comporta.service.upstream_admin import find_upstream

T = TypeVar("T")

EVERYTHING = "everything"

_USUAL_LIMIT = r"^[1-9][0-9]{0,5}/(s|minute|hour)( burst [1-9][0-9]{0,4})?$"

ADMIN_TOKEN = "admin_token"  # noqa: S105 - the name of a setting
"""The name under which the audit log has the token of the settings."""

_bearer = HTTPBearer(auto_error=False, description="The admin token of the service.")


class Operator:
    """A client with an admin token; ``client`` is its address, ``token`` the name of its token."""

    def __init__(self, container: Container, client: str, token: str) -> None:
        self.container = container
        self.client = client
        self.token = token

    async def perform(self, action: str, target: str, work: Coroutine[Any, Any, T], detail: str = "") -> T:
        """Log an action, run it, and log its outcome."""
        audit = self.container.audit
        try:
            entry_id = await audit.begin(action, target, detail, self.client, self.token)
        except BaseException:
            work.close()
            raise
        try:
            result = await work
        except BaseException as error:
            await audit.finish(entry_id, f"failed: {type(error).__name__}")
            raise
        await audit.finish(entry_id, "done")
        return result


async def require_admin(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Operator:
    """Require the admin token; without a configured token, refuse every request."""
    container = get_container(request)
    token = container.config.admin_token
    if token is None and container.authenticator.tokens is None:
        raise HttpProblem(403, "Forbidden", "admin routes are disabled: admin_token is not configured")
    client = container.admin_throttle.client_address(request)
    owner = await container.authenticator.find_token_owner(request)
    if owner is not None:
        if not owner.is_admin:
            raise HttpProblem(403, "Forbidden", "this API token does not open admin routes")
        return Operator(container, client, owner.name)
    if given is None or token is None:
        container.admin_throttle.record_failure(client)
    elif await container.admin_throttle.verify(client, given.credentials, token):
        return Operator(container, client, ADMIN_TOKEN)
    raise HttpProblem(
        401,
        "Unauthorized",
        "the admin token must be sent as Authorization: Bearer <token>",
        headers={"www-authenticate": "Bearer"},
    )


OperatorDep = Annotated[Operator, Depends(require_admin)]
UpstreamName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_.-]{1,100}$", description="Name of an upstream.")]
ParamsHash = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The hash of a search's parameters.")]
UserParam = Annotated[str, Query(min_length=1, max_length=200, pattern=NO_CONTROL_CHARS)]
OptionalUserParam = Annotated[str | None, Query(min_length=1, max_length=200, pattern=NO_CONTROL_CHARS)]
CountParam = Annotated[int, Query(ge=1, le=1000)]

LimitName = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=100,
        pattern=NO_CONTROL_CHARS,
        description="One of several limits; by default the first.",
    ),
]

router = APIRouter(prefix="/v1/admin", tags=["admin"], dependencies=[Depends(require_admin)])


class ReasonRequest(BaseModel):
    """The reason for an action, for the audit log and the dashboard."""

    reason: str = Field(default="", max_length=200)


class LimitRequest(BaseModel):
    """A limit as text: ``20/s``, ``100/minute burst 20``.

    The pattern describes the usual form. Everything that a settings file may say is accepted.
    """

    limit: str = Field(min_length=1, max_length=100, json_schema_extra={"pattern": _USUAL_LIMIT})


class PauseRequest(BaseModel):
    """The duration of a pause."""

    seconds: float = Field(gt=0, le=86_400, allow_inf_nan=False)


@router.get("/upstreams")
async def list_upstreams(operator: OperatorDep) -> dict[str, Any]:
    """List all upstreams of the fleet: circuit, limit, pause, and what operators have changed."""
    container = operator.container
    states = await read_upstream_states(container)
    own = upstream_summaries(container, states, await read_source_answers(container))
    status = await run_async(fleet_status_flow(container.store, own))
    return {
        "upstreams": [
            summary
            if summary["name"] in own
            else await run_async(current_summary_flow(container.store, summary))
            for summary in status["upstreams"]
        ]
    }


@router.post("/breakers/{name}/open")
async def open_breaker(operator: OperatorDep, name: UpstreamName, body: ReasonRequest) -> dict[str, Any]:
    """Force a breaker open for all workers until it is closed or reset."""
    breaker = await _find_breaker(operator.container, name)
    return await operator.perform("open breaker", name, _force(breaker, "open", body.reason), body.reason)


@router.post("/breakers/{name}/close")
async def close_breaker(operator: OperatorDep, name: UpstreamName, body: ReasonRequest) -> dict[str, Any]:
    """Force a breaker closed for all workers until it is opened or reset."""
    breaker = await _find_breaker(operator.container, name)
    return await operator.perform("close breaker", name, _force(breaker, "closed", body.reason), body.reason)


@router.post("/breakers/{name}/reset")
async def reset_breaker(operator: OperatorDep, name: UpstreamName) -> dict[str, Any]:
    """End a forced state and reset the breaker: closed, with no failures counted."""
    breaker = await _find_breaker(operator.container, name)
    return await operator.perform(RESET_BREAKER, name, _reset(breaker))


@router.put("/limits/{name}")
async def change_limit(
    operator: OperatorDep, name: UpstreamName, body: LimitRequest, limit_name: LimitName = None
) -> dict[str, Any]:
    """Override a limit of an upstream for all workers until it is changed again or revoked.

    A burst that the text does not give stays as it is, if the limit has one of its own.
    """
    upstream = await find_upstream(operator.container, name)
    work = upstream.set_limit(body.limit, limit_name)
    return await operator.perform("change limit", name, work, f"{limit_name or ''} {body.limit}".strip())


@router.delete("/limits/{name}")
async def revoke_limit(
    operator: OperatorDep, name: UpstreamName, limit_name: LimitName = None
) -> dict[str, Any]:
    """Revoke the override: the configured limit applies again."""
    upstream = await find_upstream(operator.container, name)
    work = upstream.set_limit(None, limit_name)
    return await operator.perform("revoke limit", name, work, limit_name or "")


@router.post("/upstreams/{name}/pause")
async def pause_upstream(operator: OperatorDep, name: UpstreamName, body: PauseRequest) -> dict[str, Any]:
    """Pause all calls to an upstream for some time."""
    upstream = await find_upstream(operator.container, name)
    detail = f"for {body.seconds:g} s"
    return await operator.perform("pause", name, upstream.set_pause(body.seconds), detail)


@router.post("/upstreams/{name}/resume")
async def resume_upstream(operator: OperatorDep, name: UpstreamName) -> dict[str, Any]:
    """End a pause."""
    upstream = await find_upstream(operator.container, name)
    return await operator.perform("resume", name, upstream.set_pause(0))


@router.get("/cache/keys")
async def list_keys(
    operator: OperatorDep, user: OptionalUserParam = None, degraded: bool = False, limit: CountParam = 100
) -> dict[str, Any]:
    """List cached keys, the freshest first; with ``degraded``, only keys in backoff."""
    return {"keys": await cache_admin.list_keys(operator.container, limit, user, degraded)}


@router.get("/cache/keys/{params_hash}")
async def show_key(operator: OperatorDep, params_hash: ParamsHash, user: UserParam) -> dict[str, Any]:
    """Show one cached key of a user."""
    key = await cache_admin.read_key(operator.container, user, params_hash)
    if key is None:
        raise _key_not_found(params_hash)
    return key


@router.post("/cache/keys/{params_hash}/refresh")
async def refresh_key(
    operator: OperatorDep, params_hash: ParamsHash, user: OptionalUserParam = None
) -> dict[str, Any]:
    """Refresh a key now, even if it is in backoff."""
    work = cache_admin.refresh_key(operator.container, params_hash, user)
    marked = await operator.perform("refresh key", params_hash, work, user or "")
    if not marked:
        raise _key_not_found(params_hash)
    return {"marked": marked}


@router.delete("/cache/keys/{params_hash}")
async def remove_key(
    operator: OperatorDep, params_hash: ParamsHash, user: UserParam, confirm: str
) -> dict[str, Any]:
    """Remove a cached key of a user; ``confirm`` must repeat the key."""
    _check_confirmation(confirm, params_hash)
    work = cache_admin.remove_key(operator.container, user, params_hash)
    if not await operator.perform("remove key", params_hash, work, user):
        raise _key_not_found(params_hash)
    return {"removed": 1}


@router.delete("/cache/keys")
async def clear_cache(
    operator: OperatorDep, confirm: Annotated[str, Query(json_schema_extra={"enum": [EVERYTHING]})]
) -> dict[str, Any]:
    """Remove all cached keys; ``confirm`` must be ``everything``."""
    _check_confirmation(confirm, EVERYTHING)
    return {
        "removed": await operator.perform("clear cache", "cache", cache_admin.clear_cache(operator.container))
    }


@router.post("/backfills/{job_id}/retry")
async def retry_backfill(
    operator: OperatorDep,
    job_id: Annotated[str, Path(min_length=1, max_length=100, pattern=NO_CONTROL_CHARS)],
) -> dict[str, Any]:
    """Retry a failed backfill from where it ended, in a new sheet if the old one was removed."""
    if operator.container.retry_backfill is None:
        raise HttpProblem(404, "Not Found", "this service runs no batches")
    result = await operator.perform("retry backfill", job_id, operator.container.retry_backfill(job_id))
    if not result:
        raise HttpProblem(404, "Not Found", f"job {job_id} has no failed backfill", "job_id")
    return {"job_id": job_id, "result": result}


@router.get("/jobs")
async def list_jobs(operator: OperatorDep, limit: CountParam = 100) -> dict[str, Any]:
    """List jobs with their full ids, the latest first; a client with the id may read the results."""
    return {"jobs": [job.as_dict() for job in await operator.container.batches.list_jobs(limit)]}


@router.get("/whoami", status_code=204)
async def whoami() -> Response:
    """Return 204 if the token is correct, so that the dashboard can check one."""
    return Response(None, 204)


@router.get("/audit")
async def audit(operator: OperatorDep, limit: CountParam = 100) -> dict[str, Any]:
    """List operator actions, the latest first."""
    return {"actions": [action._asdict() for action in await operator.container.audit.latest(limit)]}


async def _force(breaker: CircuitBreaker, state: str, reason: str) -> dict[str, Any]:
    await breaker.force(state, reason or "by an operator")
    return (await breaker.get_state()).as_dict()


async def _reset(breaker: CircuitBreaker) -> dict[str, Any]:
    await breaker.force(None)
    await breaker.reset()
    return (await breaker.get_state()).as_dict()


async def _find_breaker(container: Container, name: str) -> CircuitBreaker:
    breaker = (await find_upstream(container, name)).breaker
    if breaker is None:
        raise HttpProblem(404, "Not Found", f"{name} has no breaker", "name")
    return breaker


def _check_confirmation(given: str, expected: str) -> None:
    if given != expected:
        raise HttpProblem(
            422, "Unprocessable Content", f"confirm must be {expected!r}, got {given!r:.100}", "confirm"
        )


def _key_not_found(params_hash: str) -> HttpProblem:
    return HttpProblem(404, "Not Found", f"no cached key {params_hash}", "params_hash")
