"""The page and its files, with their headers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dashboard.rig import run_service
from tests.service.harness import async_test

from comporta.service.dashboard.static_files import (
    CONTENT_SECURITY_POLICY,
    WRONG_TOKEN_HTML,
    WRONG_TOKEN_MARK,
    PageFiles,
)

FOLDER = Path(__file__).resolve().parents[2] / "src" / "comporta" / "service" / "dashboard" / "page"
NAMES = sorted(one.name for one in FOLDER.iterdir() if one.suffix in {".css", ".js", ".svg"})
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@async_test
async def test_page__requested__has_a_security_policy_and_an_etag(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        reply = await service.client.get("/")
        same = await service.client.get("/", headers={"if-none-match": f'"other", W/{reply.headers["etag"]}'})
        other = await service.client.get("/", headers={"if-none-match": '"other"'})
        head = await service.client.head("/")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.content == (FOLDER / "index.html").read_bytes()
    assert reply.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", reply.headers["etag"])
    assert same.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert (other.status_code, other.content) == (200, reply.content)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(reply.content))


@async_test
async def test_files__each__matches_the_packaged_file(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        replies = {name: await service.client.get(f"/dashboard/{name}") for name in NAMES}
        again = await service.client.get(
            f"/dashboard/{NAMES[0]}", headers={"if-none-match": replies[NAMES[0]].headers["etag"]}
        )
    assert NAMES
    for name, reply in replies.items():
        assert (reply.status_code, reply.content) == (200, (FOLDER / name).read_bytes())
        assert reply.headers["content-type"].startswith(TYPES[Path(name).suffix])
        assert reply.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert again.status_code == 304


@async_test
async def test_files__unknown_name__returns_404(tmp_path: Path) -> None:
    names = ("nothing.js", "index.html", "signin.html", "..%2f__init__.py", "%2e%2e/files.py", "", "signin")
    async with run_service(tmp_path) as service:
        for name in names:
            reply = await service.client.get(f"/dashboard/{name}")
            assert reply.status_code == 404
            assert reply.headers["content-type"] == "application/problem+json"


@async_test
async def test_dashboard_paths__many_requests__are_exempt_from_limits(tmp_path: Path) -> None:
    async with run_service(tmp_path, client_limit="1/hour", calls_max="1") as service:
        paths = ["/", *(f"/dashboard/{name}" for name in NAMES), "/v1/dashboard", "/v1/dashboard/history"]
        statuses = {(await service.client.get(path)).status_code for _ in range(3) for path in paths}
    assert statuses == {200}


def test_pages__both__have_no_inline_script_or_style_and_no_other_host() -> None:
    for name in ("index.html", "signin.html"):
        text = (FOLDER / name).read_text("utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text)
        assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", text)


def test_files__of_the_sign_in_page__are_public_and_no_others() -> None:
    files = PageFiles.load()
    text = (FOLDER / "signin.html").read_text("utf-8")
    assert files.public_names == {name for name in NAMES if f"/dashboard/{name}" in text}
    assert "app.js" not in files.public_names
    assert WRONG_TOKEN_MARK in files.sign_in.body
    assert WRONG_TOKEN_HTML in files.sign_in_failed.body


@async_test
async def test_pages__of_the_framework__return_404(tmp_path: Path) -> None:
    async with run_service(tmp_path) as service:
        replies = [await service.client.get(path) for path in ("/docs", "/redoc", "/openapi.json")]
    assert [reply.status_code for reply in replies] == [404, 404, 200]
