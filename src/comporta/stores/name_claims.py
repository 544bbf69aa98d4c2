"""Which configuration a name has on a store, in this process.

An explicit name is a promise that all users of it mean the same: two configurations under one name in one
program are an error. A claim lasts as long as any object holds it.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta import fork_safety
from comporta.stores.base import Store


class NameClaim:
    """A configuration that objects of one name use; each of them holds it."""

    __slots__ = ("__weakref__", "config")

    def __init__(self, config: object) -> None:
        self.config = config


class NameClaims:
    """The names of one kind of object (limits, concurrency limits, ...) on each store."""

    def __init__(self) -> None:
        self._by_store: WeakKeyDictionary[Store, WeakValueDictionary[str, NameClaim]] = WeakKeyDictionary()
        self._lock = Lock()
        fork_safety.reinit_lock_after_fork(self._lock)

    def claim(
        self, store: Store, name: str, config: object, *, advice: str = "choose another name"
    ) -> NameClaim:
        """Return what the object has to hold; ``ValueError`` if the name has another configuration."""
        with self._lock:
            claims = self._by_store.setdefault(store, WeakValueDictionary())
            claim = claims.get(name)
            if claim is None:
                claim = claims[name] = NameClaim(config)
        if claim.config != config:
            raise ValueError(
                f"name {name!r} is in use on this store for {claim.config}, got {config}: {advice}"
            )
        return claim
