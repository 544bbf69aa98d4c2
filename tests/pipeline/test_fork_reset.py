"""A forked child resets an object through a private method, unless the object is gone."""

from __future__ import annotations

from comporta.pipeline.fork_reset import ForkReset


class Owner:
    def __init__(self) -> None:
        self.resets = 0
        self.fork_reset = ForkReset(self._reset)

    def _reset(self) -> None:
        self.resets += 1


def test_fork_reset__owner_exists__its_method_is_called() -> None:
    owner = Owner()
    owner.fork_reset.after_fork()
    assert owner.resets == 1


def test_fork_reset__owner_is_gone__does_nothing() -> None:
    owner = Owner()
    fork_reset = owner.fork_reset
    del owner
    fork_reset.after_fork()
    assert fork_reset._method() is None
