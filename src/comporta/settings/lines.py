"""On which line of a TOML file something was written.

The standard library reads TOML but forgets the positions. This reads only as much of the text again as is
needed to find headers and keys; it relies on the file having been understood already, and where it cannot
tell, it knows no line rather than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from comporta.settings.kinds import shown

Path = tuple[str, ...]

DEPTH_MAX = 8
"""Tables in tables that are told apart; nothing that can be configured is deeper than half of that."""

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


def lines_of(text: str) -> dict[Path, int]:
    """Return the line of each table and key, by its path from the top; of those given twice, the first.

    What is inside an inline table or an array has the line of the key outside, and so no entry.
    """
    found: dict[Path, int] = {}
    table: Path = ()
    for line, tokens in _statements(text):
        header = tokens[0][0] == "open"
        path = (_key(tokens) if header else table + _key(tokens))[:DEPTH_MAX]
        for length in range(1, len(path) + 1):
            found.setdefault(path[:length], line)
        if header:
            table = path
    return found


def line_at(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of a path, or of the nearest table around it that has one."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def table_shown(path: Path) -> str:
    """Return the header of a table as people write it; nothing for the top."""
    names = (name if _BARE.fullmatch(name) else shown(name) for name in path)
    return f"[{'.'.join(names)}]" if path else ""


def _statements(text: str) -> Iterator[tuple[int, list[Token]]]:
    """Yield what a line break outside brackets ends, with the line it starts on."""
    line, depth = 1, 0
    start, tokens = 1, list[Token]()
    for found in _TOKEN.finditer(text + "\n"):
        kind, token = found.lastgroup or "other", found[0]
        depth += (kind == "open") - (kind == "close")
        if kind == "newline" and depth <= 0:
            if tokens:
                yield start, tokens
            depth, tokens = 0, []
        elif kind in ("string", "bare", "open", "equals"):
            start = start if tokens else line
            tokens.append((kind, token))
        line += token.count("\n")


def _key(tokens: list[Token]) -> Path:
    """Return the parts of the key or header at the start of a statement."""
    parts = []
    for kind, token in tokens:
        if kind == "equals":
            break
        if kind != "open":
            parts.append(_unquoted(token) if kind == "string" else token)
    return tuple(parts)


def _unquoted(token: str) -> str:
    import tomllib  # noqa: PLC0415 - who gets here has a file

    try:
        return str(tomllib.loads(f"key = {token}")["key"])
    except ValueError:
        return token
