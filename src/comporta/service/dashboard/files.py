"""The page and its files: read once, before anybody is served, so that no request ever opens a file.

What lies in the folder then is all there is. What the sign-in page itself names may be had without a token,
or it would have no colours. Where that says ``<!-- wrong -->``, people are told that their token was wrong.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

from fastapi import Request, Response

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
INDEX: Final = "index.html"
SIGN_IN: Final = "signin.html"
WRONG_MARK: Final = b"<!-- wrong -->"
WRONG: Final = b'<p role="alert">That is not the token.</p>'

_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_NAMED = re.compile(rb"/dashboard/([\w.-]+)")


class PageFile(NamedTuple):
    """A file as it is sent."""

    body: bytes
    media_type: str
    tag: str

    @classmethod
    def of(cls, name: str, body: bytes) -> PageFile:
        """Make one of what was read."""
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, _TYPES[name.rpartition(".")[2]], tag)

    def answered(self, request: Request, status: int = 200) -> Response:
        """Return it; or only that it is still the same, to who has it."""
        headers = {"cache-control": "no-cache", "content-security-policy": POLICY, "etag": self.tag}
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if status == 200 and self.tag in known:
            return Response(None, 304, headers)
        return Response(self.body, status, headers, self.media_type)


class Files:
    """All of them by name."""

    def __init__(self, found: Mapping[str, bytes]) -> None:
        self._files = {name: PageFile.of(name, body) for name, body in found.items()}
        self.index = self._files.pop(INDEX)
        self.sign_in = self._files.pop(SIGN_IN)
        self.wrong = PageFile.of(SIGN_IN, found[SIGN_IN].replace(WRONG_MARK, WRONG))
        named = {name.decode() for name in _NAMED.findall(found[SIGN_IN])}
        self.open = frozenset(named & self._files.keys())

    @classmethod
    def read(cls) -> Files:
        """Read the folder."""
        folder = files("comporta.service.dashboard") / "page"
        return cls(
            {
                one.name: one.read_bytes()
                for one in folder.iterdir()
                if one.is_file() and one.name.rpartition(".")[2] in _TYPES
            }
        )

    def get(self, name: str) -> PageFile | None:
        """Return what goes by a name, but for the pages, which have addresses of their own."""
        return self._files.get(name)
