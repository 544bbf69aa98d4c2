"""Which configuration a name has on a store, in this process.

All users of an explicit name must mean the same: two configurations under one name in one program are an
error. A claim lasts as long as any object holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta import fork_safety
from comporta.stores.base import Store

_undo: ContextVar[list[Callable[[], None]] | None] = ContextVar("undo", default=None)


@contextmanager
def replacing_names() -> Iterator[Callable[[], None]]:
    """Let objects created in the block take over the names of others; undo that if the block raises.

    The block receives a function that undoes it later.
    """
    steps: list[Callable[[], None]] = []

    def undo() -> None:
        while steps:
            steps.pop()()

    token = _undo.set(steps)
    try:
        yield undo
    except BaseException:
        undo()
        raise
    finally:
        _undo.reset(token)


def may_replace(undo: Callable[[], None]) -> bool:
    """Whether the caller may take over a name; ``undo`` gives it back."""
    steps = _undo.get()
    if steps is None:
        return False
    steps.append(undo)
    return True


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
        """Return the claim that the object must hold; ``ValueError`` if the configurations differ."""
        with self._lock:
            claims = self._by_store.setdefault(store, WeakValueDictionary())
            claim = claims.get(name)
            if claim is None:
                claim = claims[name] = NameClaim(config)
        previous = claim.config
        if previous != config:
            if may_replace(partial(setattr, claim, "config", previous)):
                claim.config = config
                return claim
            raise ValueError(
                f"name {name!r} is in use on this store for {claim.config}, got {config}: {advice}"
            )
        return claim
