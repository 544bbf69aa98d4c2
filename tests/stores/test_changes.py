"""The change log is bounded: it drops its oldest half, and says since when it is complete."""

from __future__ import annotations

from comporta.stores.base import State
from comporta.stores.changes import CHANGES_MAX, changes_since, note_change


def log_of(count: int) -> State:
    """Return a log of changes with the versions 1 to ``count``."""
    state, _ = changes_since(None, 0, 0)
    for number in range(1, count + 1):
        state = note_change(state, f"n{number}", number)
    assert state is not None
    return state


def test_log__as_many_names_as_fit__has_all_of_them() -> None:
    _, changes = changes_since(log_of(CHANGES_MAX - 1), 0, CHANGES_MAX)
    assert changes.names is not None
    assert len(changes.names) == CHANGES_MAX - 1


def test_log__one_name_more__drops_the_oldest_half_and_knows_it() -> None:
    log, dropped = log_of(CHANGES_MAX), CHANGES_MAX // 2 - 1
    assert changes_since(log, dropped - 1, CHANGES_MAX)[1] == (CHANGES_MAX, None)
    _, changes = changes_since(log, dropped, CHANGES_MAX)
    assert changes.names == {f"n{number}": number for number in range(dropped + 1, CHANGES_MAX + 1)}
