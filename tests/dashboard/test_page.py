"""The page and its files: what is sent, and what a browser is told to do with it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dashboard.rig import running
from tests.service.running import awaited

from comporta.service.dashboard.files import POLICY, WRONG, WRONG_MARK, Files

FOLDER = Path(__file__).resolve().parents[2] / "src" / "comporta" / "service" / "dashboard" / "page"
NAMES = sorted(one.name for one in FOLDER.iterdir() if one.suffix in {".css", ".js", ".svg"})
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@awaited
async def test_page__asked_for__comes_with_a_policy_and_a_tag(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        reply = await asked.client.get("/")
        same = await asked.client.get("/", headers={"if-none-match": f'"other", W/{reply.headers["etag"]}'})
        other = await asked.client.get("/", headers={"if-none-match": '"other"'})
        head = await asked.client.head("/")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.content == (FOLDER / "index.html").read_bytes()
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", reply.headers["etag"])
    assert same.headers["content-security-policy"] == POLICY
    assert (other.status_code, other.content) == (200, reply.content)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(reply.content))


@awaited
async def test_files__each_of_them__is_what_lies_in_the_folder(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        replies = {name: await asked.client.get(f"/dashboard/{name}") for name in NAMES}
        again = await asked.client.get(
            f"/dashboard/{NAMES[0]}", headers={"if-none-match": replies[NAMES[0]].headers["etag"]}
        )
    assert NAMES
    for name, reply in replies.items():
        assert (reply.status_code, reply.content) == (200, (FOLDER / name).read_bytes())
        assert reply.headers["content-type"].startswith(TYPES[Path(name).suffix])
        assert reply.headers["content-security-policy"] == POLICY
    assert again.status_code == 304


@awaited
async def test_files__anything_else__is_a_problem(tmp_path: Path) -> None:
    names = ("nothing.js", "index.html", "signin.html", "..%2f__init__.py", "%2e%2e/files.py", "", "signin")
    async with running(tmp_path) as asked:
        for name in names:
            reply = await asked.client.get(f"/dashboard/{name}")
            assert reply.status_code == 404
            assert reply.headers["content-type"] == "application/problem+json"


@awaited
async def test_paths__many_times__are_not_limited_and_are_no_calls_under_way(tmp_path: Path) -> None:
    async with running(tmp_path, client_limit="1/hour", calls_max="1") as asked:
        paths = ["/", *(f"/dashboard/{name}" for name in NAMES), "/v1/dashboard", "/v1/dashboard/history"]
        statuses = {(await asked.client.get(path)).status_code for _ in range(3) for path in paths}
    assert statuses == {200}


def test_pages__both__have_no_script_and_no_style_of_their_own_and_name_no_other_host() -> None:
    for name in ("index.html", "signin.html"):
        text = (FOLDER / name).read_text("utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", text)
        assert not re.search(r"""(?:src|href|action)=["']?(?:https?:)?//""", text)


def test_files__of_the_sign_in_page__are_open_to_all_and_no_others() -> None:
    found = Files.read()
    text = (FOLDER / "signin.html").read_text("utf-8")
    assert found.open == {name for name in NAMES if f"/dashboard/{name}" in text}
    assert "app.js" not in found.open
    assert WRONG_MARK in found.sign_in.body
    assert WRONG in found.wrong.body


@awaited
async def test_pages__of_the_framework__are_not_there(tmp_path: Path) -> None:
    async with running(tmp_path) as asked:
        replies = [await asked.client.get(path) for path in ("/docs", "/redoc", "/openapi.json")]
    assert [reply.status_code for reply in replies] == [404, 404, 200]
