"""Line numbers of the tables and keys in a TOML file.

The parser of the standard library does not report positions. This module reads the text again, only as far as
needed to find headers and keys. It expects text that the parser has accepted; where it is not certain, it
reports no line rather than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from comporta.settings.field_types import short_repr

KeyPath = tuple[str, ...]

DEPTH_MAX = 8
"""The deepest nesting that is distinguished: twice as deep as any setting."""

_TOKEN = re.compile(
    r'(?P<string>"""(?:\\.|[^\\])*?"{3,5}|' + r"'''.*?'{3,5}|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*')"
    r"|(?P<comment>\#[^\n]*)"
    r"|(?P<open>[\[{])"
    r"|(?P<close>[\]}])"
    r"|(?P<newline>\n)"
    r"|(?P<equals>=)"
    r"|(?P<bare>[A-Za-z0-9_-]+)"
    r"|(?P<other>[^\"'#\[\]{}\n=A-Za-z0-9_-]+|.)",
    re.DOTALL,
)
_BARE = re.compile("[A-Za-z0-9_-]+")

Token = tuple[str, str]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each table and key by its path; for one that occurs twice, the first line.

    Keys inside inline tables and arrays have no entry: they have the line of the key around them.
    """
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, tokens in _statements(text):
        is_header = tokens[0][0] == "open"
        path = (_key_parts(tokens) if is_header else table + _key_parts(tokens))[:DEPTH_MAX]
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)
        if is_header:
            table = path
    return lines


def nearest_line(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """Return the line of a path, or of the nearest table around it that has one."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def table_header(path: KeyPath) -> str:
    """Return the header of a table as it is written in a file; empty for the top level."""
    names = (name if _BARE.fullmatch(name) else short_repr(name) for name in path)
    return f"[{'.'.join(names)}]" if path else ""


def _statements(text: str) -> Iterator[tuple[int, list[Token]]]:
    """Yield the tokens of each statement with its first line; a line break outside brackets ends one."""
    line, depth = 1, 0
    start, tokens = 1, list[Token]()
    for match in _TOKEN.finditer(text + "\n"):
        kind, token = match.lastgroup or "other", match[0]
        depth += (kind == "open") - (kind == "close")
        if kind == "newline" and depth <= 0:
            if tokens:
                yield start, tokens
            depth, tokens = 0, []
        elif kind in ("string", "bare", "open", "equals"):
            start = start if tokens else line
            tokens.append((kind, token))
        line += token.count("\n")


def _key_parts(tokens: list[Token]) -> KeyPath:
    """Return the parts of the key or header at the start of a statement."""
    parts = []
    for kind, token in tokens:
        if kind == "equals":
            break
        if kind != "open":
            parts.append(_unquote(token) if kind == "string" else token)
    return tuple(parts)


def _unquote(token: str) -> str:
    import tomllib  # noqa: PLC0415 - already imported by the caller

    try:
        return str(tomllib.loads(f"key = {token}")["key"])
    except ValueError:
        return token
