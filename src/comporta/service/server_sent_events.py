"""The wire format of server-sent events, for the streams of searches and of dashboard pages."""

from __future__ import annotations

from typing import Final

MEDIA_TYPE: Final = "text/event-stream"

KEEPALIVE: Final = b": keep-alive\n\n"
"""A comment, which clients ignore. It keeps proxies from closing a silent connection."""


def encode_event(kind: str, data: bytes) -> bytes:
    """Return one event; encoded JSON contains no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
