"""The Lua files of the package, read when a script is first sent."""

from __future__ import annotations

from functools import cache


@cache
def lua(package: str, *names: str) -> str:
    """Return the text of some Lua files of one of our packages: ``lua("limits", "take")``."""
    from importlib.resources import files  # noqa: PLC0415 - a sixth of all that importing comporta costs

    folder = files(f"comporta.{package}")
    return "\n".join(folder.joinpath(f"{name}.lua").read_text("utf-8") for name in names)
