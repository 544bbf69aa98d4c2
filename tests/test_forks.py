"""What is done around a fork is done for all, whatever one of them raises."""

from __future__ import annotations

import gc

import pytest

from comporta import forks


class Thing:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.told: list[str] = []

    def _told(self, what: str) -> None:
        self.told.append(what)
        if self.error is not None:
            raise self.error

    def after_fork(self) -> None:
        self._told("child")

    def before_fork(self) -> None:
        self._told("before")

    def after_fork_in_parent(self) -> None:
        self._told("parent")


def test_fork__one_that_fails__does_not_keep_the_others_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    things = [Thing(), Thing(OSError("no files left")), Thing()]
    monkeypatch.setattr(forks, "_registered", list(things))
    monkeypatch.setattr(forks, "_resting", list(things))
    for step in (forks._rest_all, forks._tell_all, forks._resume_all):
        with pytest.raises(OSError, match="no files left"):
            step()
    assert [thing.told for thing in things] == [["before", "child", "parent"]] * 3
