"""Caches of bounded size drop a small part of their entries at a time."""

from __future__ import annotations

from comporta.stores.bounded_cache import drop_oldest


def test_drop_oldest__below_the_bound__keeps_all() -> None:
    entries = dict.fromkeys(range(9))
    drop_oldest(entries, 10)
    assert list(entries) == list(range(9))


def test_drop_oldest__full__deletes_a_few_of_those_added_first() -> None:
    small, large = dict.fromkeys(range(10)), dict.fromkeys(range(1024))
    drop_oldest(small, 10)
    drop_oldest(large, 1024)
    assert list(small) == list(range(1, 10))
    assert list(large) == list(range(4, 1024))


def test_drop_oldest__changed_by_another_thread__leaves_it_to_the_next_call() -> None:
    class ChangingDict(dict[int, None]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise RuntimeError("dictionary changed size during iteration")

    entries = ChangingDict.fromkeys(range(3))
    drop_oldest(entries, 2)
    assert len(entries) == 3
