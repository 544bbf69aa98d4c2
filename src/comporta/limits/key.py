"""Whose limit it is: a key in a namespace, in a form that can be read back."""

from __future__ import annotations

from comporta.stores.base import KEY_BYTES_MAX

_PLAIN_BYTES_MAX = 200
_DIGEST_MARK = "~"


class LimitKey:
    """A key with its namespace and, if wanted, a version: ``namespace:key[:version]``.

    Colons (and percent signs) inside a part are written ``%3A`` (``%25``), so ``from_str`` reads back
    exactly what ``str`` wrote.
    """

    __slots__ = ("_text", "key", "namespace", "version")

    def __init__(self, namespace: str, key: str, version: str | None = None) -> None:
        parts = {"namespace": namespace, "key": key}
        if version is not None:
            parts["version"] = version
        for name, part in parts.items():
            if not isinstance(part, str):
                raise TypeError(f"{name} must be a str, got {part!r:.100}")
            if not part:
                raise ValueError(f"{name} must not be empty, got {part!r}")
        self.namespace = _plain(namespace)
        self.key = _plain(key)
        self.version = None if version is None else _plain(version)
        self._text = ":".join(_escaped(_plain(part)) for part in parts.values())

    @classmethod
    def from_str(cls, text: str) -> LimitKey:
        """Read back what ``str`` wrote."""
        if not isinstance(text, str):
            raise TypeError(f"key must be a str, got {text!r:.100}")
        parts = text.split(":")
        if not 2 <= len(parts) <= 3:
            raise ValueError(f"key must be 'namespace:key' or 'namespace:key:version', got {text!r:.100}")
        return cls(*map(_unescaped, parts))

    def __str__(self) -> str:
        """Return the key as it is stored."""
        return self._text

    def __repr__(self) -> str:
        """Return what would make it."""
        version = "" if self.version is None else f", {self.version!r}"
        return f"LimitKey({self.namespace!r}, {self.key!r}{version})"

    def __eq__(self, other: object) -> bool:
        """Two keys are one if they are stored alike."""
        return self._text == other._text if isinstance(other, LimitKey) else NotImplemented

    def __hash__(self) -> int:
        """Hash what is stored."""
        return hash(self._text)


def _plain(text: str) -> str:
    """Return the characters themselves: a member of ``class Key(str, Enum)`` writes itself otherwise."""
    return text if type(text) is str else str.__str__(text)


def _escaped(part: str) -> str:
    return part.replace("%", "%25").replace(":", "%3A")


def _unescaped(part: str) -> str:
    return part.replace("%3A", ":").replace("%25", "%")


def state_key(key: LimitKey | str | None) -> str:
    """Return the key under which a state is kept; ``None`` is the limiter as a whole.

    A long key is replaced by its digest, so that a caller who sends megabytes costs no more than others.
    A key that looks like such a digest is digested too, so that nobody can choose to meet another's.
    """
    if key is None:
        return ""
    if isinstance(key, LimitKey):
        key = str(key)
    elif not isinstance(key, str):
        raise TypeError(f"key must be a LimitKey, a str or None, got {key!r:.100}")
    text = _plain(key)
    if not text:
        raise ValueError("key must not be empty, got ''; None is the limiter as a whole")
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _PLAIN_BYTES_MAX or text.startswith(_DIGEST_MARK):
        from hashlib import blake2b  # noqa: PLC0415 - loads OpenSSL, and few keys are that long

        return _DIGEST_MARK + blake2b(data, digest_size=20).hexdigest()
    return text


def printable(text: str) -> str:
    """Return a key for a log line: one line, no control characters, not too long."""
    return ascii(text)[1:-1][: KEY_BYTES_MAX // 4]
