"""What loaders are told, and what they give: checked, and joined with what there was.

Pure, but for JSON. A value is what its JSON says from the first call on, so that nobody sees a tuple today
and a list tomorrow, and nobody shares an object with the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.cache.body import decoded, encoded
from comporta.cache.cached import Cached, Loaded
from comporta.cache.config import check_count
from comporta.cache.coverage import Coverage
from comporta.cache.health import FRESH

SOURCES_MAX = 100
TOTAL_MAX = 2**31 - 1

Loader = Callable[..., Any]
Merge = Callable[[Any, Any], Any]


class Answer(NamedTuple):
    """What a loader gave, checked."""

    value: Any
    body: bytes
    coverage: Coverage | None
    sources: tuple[str, ...]
    total_results: int


def answer_of(given: Any) -> Answer:
    """Check what a loader returned, a plain value or a ``Loaded``."""
    loaded = given if isinstance(given, Loaded) else Loaded(given)
    coverage = Coverage.of(loaded.coverage)
    body = encoded(loaded.value)
    return Answer(decoded(body), body, coverage, check_sources(loaded.sources), _total(loaded))


def _total(loaded: Loaded) -> int:
    total = _length(loaded.value) if loaded.total_results is None else loaded.total_results
    check_count("total_results", total, 0, TOTAL_MAX)
    return total


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence | Mapping) else 0


def check_sources(sources: Any) -> tuple[str, ...]:
    """Return names of sources, if they are some."""
    if not isinstance(sources, list | tuple) or not all(isinstance(source, str) for source in sources):
        raise TypeError(f"sources must be a list of names, got {sources!r:.100}")
    if len(sources) > SOURCES_MAX:
        raise ValueError(f"sources must be at most {SOURCES_MAX} names, got {len(sources)}")
    return tuple(sources)


def missing_of(found: Cached | None, loader: Loader) -> tuple[str, ...]:
    """Return what a loader that takes ``missing`` has to bring to make a fresh answer whole; nothing: all."""
    if found is None or found.freshness != FRESH or found.coverage is None or found.coverage.complete:
        return ()
    return found.coverage.failed_ufs if takes(loader, "missing") else ()


def bound(loader: Loader, missing: tuple[str, ...]) -> Callable[[], Any]:
    """Return the loader with what it is told."""
    return partial(loader, missing=list(missing)) if missing else loader


def joined(found: Cached, missing: tuple[str, ...], given: Any, merge: Merge | None) -> Loaded:
    """Return what there was together with what was missing; whatever is not spoken of was brought."""
    loaded = given if isinstance(given, Loaded) else Loaded(given)
    assert found.coverage is not None  # noqa: S101 - see missing_of
    brought = Coverage.of(loaded.coverage) or Coverage(missing)
    value = (merge or _merged)(found.value, loaded.value)
    sources = tuple(dict.fromkeys((*found.sources, *check_sources(loaded.sources))))
    plain = loaded.total_results is None and found.total_results == _length(found.value)
    total = None if plain else min(TOTAL_MAX, found.total_results + _total(loaded))
    return Loaded(value, found.coverage.joined(brought), sources, total)


def _merged(old: Any, new: Any) -> Any:
    if isinstance(old, list) and isinstance(new, list | tuple):
        return [*old, *new]
    if isinstance(old, dict) and isinstance(new, Mapping):
        return {**old, **new}
    raise TypeError(
        f"merge must say how to join {type(old).__name__} and {type(new).__name__}: only lists and mappings "
        f"are joined without it, got {new!r:.50}"
    )


def takes(loader: Loader, name: str) -> bool:
    """Whether a loader has an argument of this name."""
    from inspect import signature  # noqa: PLC0415 - costs 10 ms

    try:
        return name in signature(loader).parameters
    except (TypeError, ValueError):  # a built-in that does not tell
        return False
