"""The dashboard: the page, its files, and what it shows.

With a token configured nothing of it is to be had without: the page answers with the one to sign in at.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from fastapi.security import HTTPBearer

from comporta.service.dashboard.doors import refuse_strangers
from comporta.service.dashboard.live import MEDIA_TYPE, PageStream
from comporta.service.parts import Parts, parts_of
from comporta.service.problems import MEDIA_TYPE as PROBLEM
from comporta.service.problems import Problem

router = APIRouter(tags=["dashboard"])

JSON: Final = "application/json"
FULL_RETRY_SECONDS: Final = 5.0

_bearer = HTTPBearer(auto_error=False, description="The dashboard's token, where one is configured.")
_REFUSED = {"www-authenticate": "Bearer"}
_PROBLEM: dict[str, Any] = {"content": {PROBLEM: {"schema": {"type": "object"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"description": "A token is configured, and was not sent.", **_PROBLEM},
    429: {"description": "Too many wrong tokens.", **_PROBLEM},
    503: {"description": "What is asked for cannot be had now.", **_PROBLEM},
}


async def admitted(request: Request, _: Annotated[object, Depends(_bearer)] = None) -> Parts:
    """Let in who may look."""
    parts = parts_of(request)
    if not await parts.dashboard.doors.admits(request):
        detail = "the dashboard's token must be sent as Authorization: Bearer <token>, or be signed in with"
        raise Problem(401, "Unauthorized", detail, headers=_REFUSED)
    return parts


Admitted = Annotated[Parts, Depends(admitted)]


@router.get(
    "/v1/dashboard",
    response_class=Response,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_RESPONSES},
)
async def document(parts: Admitted) -> Response:
    """How the whole fleet fares: upstreams, workers, cache, jobs, and what happened last."""
    made = await parts.dashboard.document.get()
    return Response(made, 200, {"cache-control": "no-store"}, JSON)


@router.get(
    "/v1/dashboard/history",
    response_class=Response,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_RESPONSES},
)
async def history(parts: Admitted) -> Response:
    """An hour of numbers of each upstream, the cache and the service, in slots of ten seconds."""
    made = await parts.dashboard.history.get()
    return Response(made, 200, {"cache-control": "no-store"}, JSON)


@router.get(
    "/v1/dashboard/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}, **_RESPONSES},
)
async def stream(parts: Admitted) -> Response:
    """The history, then the document about once a second, until the worker ends."""
    live = parts.dashboard.live
    if live.full:
        detail = "too many pages are open at this worker"
        raise Problem(503, "Service Unavailable", detail, retry_after=FULL_RETRY_SECONDS)
    return PageStream(live)


async def page(request: Request) -> Response:
    """The page itself, or the one to sign in at."""
    dashboard = parts_of(request).dashboard
    if await dashboard.doors.admits(request):
        return dashboard.files.index.answered(request)
    answer = dashboard.files.sign_in.answered(request, 401)
    answer.headers.update(_REFUSED)
    return answer


async def file(request: Request) -> Response:
    """What the page is made of."""
    name = request.path_params["name"]
    dashboard = parts_of(request).dashboard
    if name not in dashboard.files.open:
        await admitted(request)
    found = dashboard.files.get(name)
    if found is None:
        raise Problem(404, "Not Found", "the dashboard has no such file")
    return found.answered(request)


async def sign_in(request: Request) -> Response:
    """Give a browser with the token a cookie, so that it need not be typed again."""
    refuse_strangers(request)
    dashboard = parts_of(request).dashboard
    if dashboard.doors.locked and not await dashboard.doors.opened(request):
        if _is_form(request):
            return dashboard.files.wrong.answered(request, 401)
        raise Problem(401, "Unauthorized", "that is not the dashboard's token", "token", headers=_REFUSED)
    answer = _after(request)
    dashboard.doors.give(request, answer)
    return answer


async def sign_out(request: Request) -> Response:
    """Take the cookie back."""
    refuse_strangers(request)
    answer = _after(request)
    parts_of(request).dashboard.doors.take(request, answer)
    return answer


def _after(request: Request) -> Response:
    return RedirectResponse("/", 303) if _is_form(request) else Response(None, 204)


def _is_form(request: Request) -> bool:
    """Whether a browser shows the answer as a page."""
    return "text/html" in request.headers.get("accept", "")


# Plain routes, which answer HEAD as well; they are the page's own and not described.
router.add_route("/", page, methods=["GET"], include_in_schema=False)
router.add_route("/dashboard/signin", sign_in, methods=["POST"], include_in_schema=False)
router.add_route("/dashboard/signout", sign_out, methods=["POST"], include_in_schema=False)
router.add_route("/dashboard/{name}", file, methods=["GET"], include_in_schema=False)
