"""Encode one command and read one reply in the Redis protocol (RESP2), as redis-cli does.

With it a test can inspect a server without the client under test.
"""

from __future__ import annotations

from typing import Any, BinaryIO

Word = str | bytes | int | float


def encode_command(*words: Word) -> bytes:
    """Return a command in its wire format."""
    encoded = [word if isinstance(word, bytes) else _bytes(str(word)) for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


def read_reply(file: BinaryIO) -> Any:
    """Read one reply: text, a number, ``None`` or a list.

    Raise a ``RuntimeError`` with the server's text if the reply is an error.
    """
    reply = _read(file)
    if isinstance(reply, RuntimeError):
        raise reply
    return reply


def _read(file: BinaryIO) -> Any:
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError(f"the connection ended in the middle of a reply, after {line!r:.100}")
    kind, rest = line[:1], line[1:-2]
    if kind == b"+":
        return _text(rest)
    if kind == b"-":
        return RuntimeError(_text(rest))
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else _text(file.read(int(rest) + 2)[:-2])
    if kind == b"*":
        return None if rest == b"-1" else [_read(file) for _ in range(int(rest))]
    raise ConnectionError(f"not a reply in the Redis protocol: {line!r:.100}")


def _text(raw: bytes) -> str:
    """Decode UTF-8. Other bytes become lone surrogates, which ``encode_command`` turns back into bytes."""
    return raw.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
