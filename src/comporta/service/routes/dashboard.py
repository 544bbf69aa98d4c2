"""Dashboard routes: the page, its files and its data.

If a token is configured, all of them need it; without it ``/`` shows the sign-in page.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse
from fastapi.security import HTTPBearer

from comporta.service.container import Container, get_container
from comporta.service.dashboard.auth import require_same_origin
from comporta.service.dashboard.live import PageStream
from comporta.service.problems import MEDIA_TYPE as PROBLEM
from comporta.service.problems import HttpProblem
from comporta.service.server_sent_events import MEDIA_TYPE as EVENTS

router = APIRouter(tags=["dashboard"])

JSON: Final = "application/json"
FULL_RETRY_SECONDS: Final = 5.0

_bearer = HTTPBearer(auto_error=False, description="The dashboard token, if one is configured.")
_CHALLENGE = {"www-authenticate": "Bearer"}
_PROBLEM: dict[str, Any] = {"content": {PROBLEM: {"schema": {"type": "object"}}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"description": "A token is configured and was not sent.", **_PROBLEM},
    429: {"description": "Too many wrong tokens.", **_PROBLEM},
    503: {"description": "The data is currently not available.", **_PROBLEM},
}


async def require_access(request: Request, _: Annotated[object, Depends(_bearer)] = None) -> Container:
    """Require the dashboard token, in a header or a cookie."""
    container = get_container(request)
    if not await container.dashboard.auth.is_authorized(request):
        detail = "send the dashboard token as Authorization: Bearer <token>, or sign in"
        raise HttpProblem(401, "Unauthorized", detail, headers=_CHALLENGE)
    return container


AuthorizedContainer = Annotated[Container, Depends(require_access)]


@router.get(
    "/v1/dashboard",
    response_class=Response,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_RESPONSES},
)
async def document(container: AuthorizedContainer) -> Response:
    """The state of the whole fleet: upstreams, workers, cache, jobs and recent events."""
    body = await container.dashboard.document.get()
    return Response(body, 200, {"cache-control": "no-store"}, JSON)


@router.get(
    "/v1/dashboard/history",
    response_class=Response,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_RESPONSES},
)
async def history(container: AuthorizedContainer) -> Response:
    """An hour of history of each upstream, the cache and the service, in slots of 10 s."""
    body = await container.dashboard.history.get()
    return Response(body, 200, {"cache-control": "no-store"}, JSON)


@router.get(
    "/v1/dashboard/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {EVENTS: {"schema": {"type": "string"}}}}, **_RESPONSES},
)
async def stream(container: AuthorizedContainer) -> Response:
    """Server-sent events: the history, then a document about once a second."""
    live = container.dashboard.live
    if live.is_full:
        detail = "too many dashboard pages are connected to this worker"
        raise HttpProblem(503, "Service Unavailable", detail, retry_after=FULL_RETRY_SECONDS)
    return PageStream(live)


async def page(request: Request) -> Response:
    """Serve the page, or the sign-in page."""
    dashboard = get_container(request).dashboard
    if await dashboard.auth.is_authorized(request):
        return dashboard.files.index.response(request)
    response = dashboard.files.sign_in.response(request, 401)
    response.headers.update(_CHALLENGE)
    return response


async def file(request: Request) -> Response:
    """Serve a file of the page."""
    name = request.path_params["name"]
    dashboard = get_container(request).dashboard
    if name not in dashboard.files.public_names:
        await require_access(request)
    static_file = dashboard.files.get(name)
    if static_file is None:
        raise HttpProblem(404, "Not Found", f"the dashboard has no file {name!r:.100}")
    return static_file.response(request)


async def sign_in(request: Request) -> Response:
    """Set the session cookie of a browser that sends the token."""
    require_same_origin(request)
    dashboard = get_container(request).dashboard
    if dashboard.auth.requires_token and not await dashboard.auth.is_form_authorized(request):
        if _wants_html(request):
            return dashboard.files.sign_in_failed.response(request, 401)
        raise HttpProblem(401, "Unauthorized", "wrong dashboard token", "token", headers=_CHALLENGE)
    response = _empty_or_redirect(request)
    dashboard.auth.set_cookie(request, response)
    return response


async def sign_out(request: Request) -> Response:
    """Delete the session cookie."""
    require_same_origin(request)
    response = _empty_or_redirect(request)
    get_container(request).dashboard.auth.delete_cookie(request, response)
    return response


def _empty_or_redirect(request: Request) -> Response:
    return RedirectResponse("/", 303) if _wants_html(request) else Response(None, 204)


def _wants_html(request: Request) -> bool:
    """Whether the client is a browser that shows the response as a page."""
    return "text/html" in request.headers.get("accept", "")


# Starlette routes, which also answer HEAD. They belong to the page and are not in the OpenAPI document.
router.add_route("/", page, methods=["GET"], include_in_schema=False)
router.add_route("/dashboard/signin", sign_in, methods=["POST"], include_in_schema=False)
router.add_route("/dashboard/signout", sign_out, methods=["POST"], include_in_schema=False)
router.add_route("/dashboard/{name}", file, methods=["GET"], include_in_schema=False)
