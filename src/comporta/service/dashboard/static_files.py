"""The page and its files, loaded once at startup so that no request opens a file.

Only files that are in the directory at startup are served. Files that the sign-in page refers to are public,
so that it has its styles. A failed sign-in shows an error in place of ``<!-- wrong -->``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final, NamedTuple

from fastapi import Request, Response

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
INDEX: Final = "index.html"
SIGN_IN: Final = "signin.html"
WRONG_TOKEN_MARK: Final = b"<!-- wrong -->"
WRONG_TOKEN_HTML: Final = b'<p role="alert">Wrong token. Try again.</p>'

_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_DASHBOARD_PATH = re.compile(rb"/dashboard/([\w.-]+)")


class StaticFile(NamedTuple):
    """A file with its media type and ETag."""

    body: bytes
    media_type: str
    etag: str

    @classmethod
    def from_body(cls, name: str, body: bytes) -> StaticFile:
        """Create it from its name and content."""
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, _TYPES[name.rpartition(".")[2]], etag)

    def response(self, request: Request, status: int = 200) -> Response:
        """Return the file, or a 304 if the client already has it."""
        headers = {
            "cache-control": "no-cache",
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "etag": self.etag,
        }
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if status == 200 and self.etag in known:
            return Response(None, 304, headers)
        return Response(self.body, status, headers, self.media_type)


class PageFiles:
    """The files of the page by name."""

    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        self._files = {name: StaticFile.from_body(name, body) for name, body in bodies.items()}
        self.index = self._files.pop(INDEX)
        self.sign_in = self._files.pop(SIGN_IN)
        self.sign_in_failed = StaticFile.from_body(
            SIGN_IN, bodies[SIGN_IN].replace(WRONG_TOKEN_MARK, WRONG_TOKEN_HTML)
        )
        referenced = {name.decode() for name in _DASHBOARD_PATH.findall(bodies[SIGN_IN])}
        self.public_names = frozenset(referenced & self._files.keys())

    @classmethod
    def load(cls) -> PageFiles:
        """Load the directory ``page``."""
        directory = files("comporta.service.dashboard") / "page"
        return cls(
            {
                file.name: file.read_bytes()
                for file in directory.iterdir()
                if file.is_file() and file.name.rpartition(".")[2] in _TYPES
            }
        )

    def get(self, name: str) -> StaticFile | None:
        """Return a file by name; the pages themselves have paths of their own and are not among them."""
        return self._files.get(name)
