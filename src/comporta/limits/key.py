"""Keys of limits: a key in a namespace, in a text form that can be parsed again."""

from __future__ import annotations

from comporta.stores.base import KEY_BYTES_MAX

PLAIN_BYTES_MAX = 200
"""Stores keep a longer key as its digest."""

DIGEST_PREFIX = "~"


class LimitKey:
    """A key with its namespace and an optional version: ``namespace:key[:version]``.

    ``str`` writes colons and percent signs inside a part as ``%3A`` and ``%25``, so ``from_str`` reads back
    exactly what ``str`` wrote.
    """

    __slots__ = ("_text", "key", "namespace", "version")

    def __init__(self, namespace: str, key: str, version: str | None = None) -> None:
        self.namespace = namespace = _checked_part("namespace", namespace)
        self.key = key = _checked_part("key", key)
        self.version = version
        self._text = f"{_escape(namespace)}:{_escape(key)}"
        if version is not None:
            self.version = version = _checked_part("version", version)
            self._text += f":{_escape(version)}"

    @classmethod
    def from_str(cls, text: str) -> LimitKey:
        """Parse the text that ``str`` returned."""
        if not isinstance(text, str):
            raise TypeError(f"key must be a str, got {text!r:.100}")
        parts = text.split(":")
        if not 2 <= len(parts) <= 3:
            raise ValueError(f"key must be 'namespace:key' or 'namespace:key:version', got {text!r:.100}")
        return cls(*map(_unescape, parts))

    def __str__(self) -> str:
        """Return the key as stores keep it."""
        return self._text

    def __repr__(self) -> str:
        """Return the call that creates the key."""
        version = "" if self.version is None else f", {self.version!r}"
        return f"LimitKey({self.namespace!r}, {self.key!r}{version})"

    def __eq__(self, other: object) -> bool:
        """Compare the texts under which stores keep the keys."""
        return self._text == other._text if isinstance(other, LimitKey) else NotImplemented

    def __hash__(self) -> int:
        """Hash the text."""
        return hash(self._text)


def _checked_part(name: str, part: str) -> str:
    """Return a part of a key as a plain ``str``, or raise if it is empty or something else."""
    if not isinstance(part, str):
        raise TypeError(f"{name} must be a str, got {part!r:.100}")
    if not part:
        raise ValueError(f"{name} must not be empty, got {part!r}")
    return _plain_str(part)


def _plain_str(text: str) -> str:
    """Return the characters of a ``str`` subclass: a member of ``Key(str, Enum)`` prints differently."""
    return text if type(text) is str else str.__str__(text)


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A") if "%" in part or ":" in part else part


def _unescape(part: str) -> str:
    return part.replace("%3A", ":").replace("%25", "%")


def normalize_key(key: LimitKey | str | None) -> str:
    """Return the text under which a store keeps the state of a key; ``None`` is the limit as a whole.

    A long key is replaced by its digest, so that a client that sends a huge key costs no more than others. A
    key that looks like such a digest is digested too, so that no client can pose as another.
    """
    if key is None:
        return ""
    if isinstance(key, LimitKey):
        key = str(key)
    elif not isinstance(key, str):
        raise TypeError(f"key must be a LimitKey, a str or None, got {key!r:.100}")
    text = _plain_str(key)
    if not text:
        raise ValueError("key must not be empty, got '': None is the limit as a whole")
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > PLAIN_BYTES_MAX or text.startswith(DIGEST_PREFIX):
        from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL, and few keys are that long

        return DIGEST_PREFIX + blake2b(data, digest_size=20).hexdigest()
    return text


def printable_text(text: str) -> str:
    """Return a key for a log line: one line, no control characters, of bounded length."""
    return ascii(text)[1:-1][: KEY_BYTES_MAX // 4]
