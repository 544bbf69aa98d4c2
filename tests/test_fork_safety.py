"""The hooks around a fork reach every registered object, even if one of them raises."""

from __future__ import annotations

import gc

import pytest

from comporta import fork_safety
from comporta.weak_registry import WeakRegistry


class Forkable:
    """Records the calls of its hooks; raises ``error`` in each of them."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls: list[str] = []

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if self.error is not None:
            raise self.error

    def after_fork(self) -> None:
        self._record("child")

    def before_fork(self) -> None:
        self._record("before")

    def after_fork_in_parent(self) -> None:
        self._record("parent")


def test_fork__one_object_raises__the_others_are_still_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    objects = [Forkable(), Forkable(OSError("no files left")), Forkable()]
    for name in ("_forkables", "_thread_owners"):
        registry: WeakRegistry[Forkable] = WeakRegistry()
        monkeypatch.setattr(fork_safety, name, registry)
        for each in objects:
            registry.add(each)
    for step in (fork_safety._pause_threads, fork_safety._reset_child, fork_safety._resume_threads):
        with pytest.raises(OSError, match="no files left"):
            step()
    assert [each.calls for each in objects] == [["before", "child", "parent"]] * 3
