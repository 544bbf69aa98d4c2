"""The objects of this process by name and store, to replace objects that another process pickled.

A pickle of a limiter or an upstream contains its name and the address of its store, never a password. The
process that loads the pickle uses its own object of that name.
"""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from comporta import fork_safety
from comporta.stores.base import Store
from comporta.stores.registry import default_url, open_store, opened_store

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """The objects of one kind, by the address of their store and their name; the latest of each name."""

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[tuple[str, str], T] = WeakValueDictionary()
        self._lock = Lock()
        fork_safety.reinit_lock_after_fork(self._lock)

    def add(self, store: Store, name: str, item: T) -> None:
        """Register an object for as long as the program uses it."""
        with self._lock:
            self._objects[store.address, name] = item

    def find(self, address: str, name: str) -> T | None:
        """Return the object of this process, if there is one."""
        with self._lock:
            return self._objects.get((address, name))


def require_picklable(what: str, store: Store) -> None:
    """Raise ``TypeError`` for an object whose state no other process can see."""
    if not store.shared:
        raise TypeError(
            f"{what} cannot be pickled: its state is in the memory of this process, and another process "
            "would count by itself. Use shared:// or redis://, or create it in each process"
        )


def store_at(address: str) -> Store:
    """Return the store of an address without credentials: an open one, the default one, or a new one."""
    store = opened_store(address)
    if store is None:
        default = open_store(default_url(distributed=True))
        store = default if default.address == address else open_store(address)
    return store
