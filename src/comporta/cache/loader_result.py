"""Validates what loaders return, and merges it into a cached partial result.

Pure, except that it encodes JSON. Even the first caller gets the value that the JSON decodes to. So the type
of a value never changes between calls, and no caller shares an object with the loader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict

from comporta.cache.coverage import Coverage
from comporta.cache.entry import Cached, Loaded
from comporta.cache.health import FRESH
from comporta.cache.serialization import decode_json, encode_json
from comporta.validators import require_integer

SOURCES_MAX = 100
TOTAL_MAX = 2**31 - 1

Loader = Callable[..., Any]
Merge = Callable[[Any, Any], Any]


class FetchOptions(TypedDict, total=False):
    """The keyword arguments of ``fetch``, for the overloads that know what a loader returns."""

    force: bool
    timeout: float | None
    soft_timeout: float | None
    saved: bool | None
    merge: Merge | None
    refresh_loader: Loader | None
    key: str | None
    tags: Sequence[str]


class LoaderResult(NamedTuple):
    """A validated result of a loader; ``body`` is the JSON of ``value``."""

    value: Any
    body: bytes
    coverage: Coverage | None
    sources: tuple[str, ...]
    total_results: int


def validate_result(given: Any) -> LoaderResult:
    """Validate what a loader returned, a plain value or a ``Loaded``."""
    loaded = given if isinstance(given, Loaded) else Loaded(given)
    coverage = Coverage.parse(loaded.coverage)
    body = encode_json(loaded.value)
    return LoaderResult(
        decode_json(body), body, coverage, check_sources(loaded.sources), _total_results(loaded)
    )


def _total_results(loaded: Loaded) -> int:
    total = _length(loaded.value) if loaded.total_results is None else loaded.total_results
    return require_integer("total_results", total, 0, TOTAL_MAX)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, Sequence | Mapping) else 0


def check_sources(sources: Any) -> tuple[str, ...]:
    """Return source names; raise unless it is a list or tuple of at most 100 strings."""
    if not isinstance(sources, list | tuple) or not all(isinstance(source, str) for source in sources):
        raise TypeError(f"sources must be a list of names, got {sources!r:.100}")
    if len(sources) > SOURCES_MAX:
        raise ValueError(f"sources must be at most {SOURCES_MAX} names, got {len(sources)}")
    return tuple(sources)


def missing_units(cached: Cached | None, loader: Loader) -> tuple[str, ...]:
    """Return the units that a fresh result lacks, for a loader with a parameter ``missing``; otherwise none.

    An empty tuple means that the loader has to load everything.
    """
    if cached is None or cached.freshness != FRESH or cached.coverage is None or cached.coverage.is_complete:
        return ()
    return cached.coverage.failed if has_parameter(loader, "missing") else ()


def bind_missing(loader: Loader, missing: tuple[str, ...]) -> Callable[[], Any]:
    """Return the loader as a function without arguments; it gets the missing units, if there are any."""
    return partial(loader, missing=list(missing)) if missing else loader


def merge_result(cached: Cached, missing: tuple[str, ...], given: Any, merge: Merge | None) -> Loaded:
    """Return the cached result merged with its missing units; without coverage, all of them were loaded."""
    loaded = given if isinstance(given, Loaded) else Loaded(given)
    assert cached.coverage is not None  # noqa: S101 - missing_units made sure of it
    loaded_coverage = Coverage.parse(loaded.coverage) or Coverage(missing)
    value = (merge or _merge_values)(cached.value, loaded.value)
    sources = tuple(dict.fromkeys((*cached.sources, *check_sources(loaded.sources))))
    is_plain = loaded.total_results is None and cached.total_results == _length(cached.value)
    total = None if is_plain else min(TOTAL_MAX, cached.total_results + _total_results(loaded))
    return Loaded(value, cached.coverage.merge(loaded_coverage), sources, total)


def _merge_values(old: Any, new: Any) -> Any:
    if isinstance(old, list) and isinstance(new, list | tuple):
        return [*old, *new]
    if isinstance(old, dict) and isinstance(new, Mapping):
        return {**old, **new}
    raise TypeError(
        f"merge is required to combine {type(old).__name__} and {type(new).__name__}: only lists and "
        f"mappings are merged without it, got {new!r:.50}"
    )


def has_parameter(loader: Loader, name: str) -> bool:
    """Whether a loader has a parameter of this name."""
    from inspect import signature  # noqa: PLC0415 - takes 10 ms

    try:
        return name in signature(loader).parameters
    except (TypeError, ValueError):  # a built-in without a signature
        return False
