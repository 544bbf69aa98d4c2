"""The Lua files of the package, read when a script is first used, and the errors that scripts return."""

from __future__ import annotations

from functools import cache

from comporta.errors import StateError
from comporta.stores.redis.errors import translate_error


@cache
def lua(*paths: str) -> str:
    """Return the text of some Lua files, joined, such as ``lua("limits/support", "limits/acquire")``."""
    from importlib.resources import files  # noqa: PLC0415 - a sixth of the time that importing comporta takes

    package = files("comporta")
    return "\n".join(package.joinpath(f"{path}.lua").read_text("utf-8") for path in paths)


def script_error(error: bytes | str, key: str) -> StateError:
    """Return the error for a key that a script could not use, given the text that it returned.

    Anything but a text raises ``AttributeError``: the reply is malformed, and its connection is closed.
    """
    text = error if isinstance(error, str) else error.decode("utf-8", "replace")
    return translate_error(RuntimeError(text), repr(key), repr(key))
