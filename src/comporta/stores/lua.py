"""The Lua files of the package, read when a script is first used."""

from __future__ import annotations

from functools import cache


@cache
def lua(*paths: str) -> str:
    """Return the text of some Lua files, joined, such as ``lua("limits/support", "limits/acquire")``."""
    from importlib.resources import files  # noqa: PLC0415 - a sixth of the time that importing comporta takes

    package = files("comporta")
    return "\n".join(package.joinpath(f"{path}.lua").read_text("utf-8") for path in paths)
