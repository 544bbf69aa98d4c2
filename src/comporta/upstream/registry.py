"""All upstreams of a program from one file: ``Upstreams.from_file("comporta.toml")["pncp"]``.

This module builds upstreams from settings; :mod:`comporta.settings` reads and validates the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import breaker_config_from_settings
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import BaseLimiter
from comporta.limits.manager import check_same_strategy, limit_configs_from_settings, require_same_state
from comporta.limits.overrides.degradation import Degradation
from comporta.retry.budget import Budget
from comporta.retry.retry import Retry
from comporta.stores.base import Store
from comporta.stores.name_claims import replacing_names
from comporta.stores.registry import default_url, open_store
from comporta.upstream.factory import DEGRADATION_RULE
from comporta.upstream.replaceable_guards import ReplaceableGuards
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.settings import DegradationSettings, RetrySettings, Settings, UpstreamSettings
    from comporta.settings.reloader import PreparedChange
    from comporta.settings.toml_table import SettingsTable


class Upstreams(Mapping[str, Upstream]):
    """The upstreams of a settings file, by name.

    A wrong value raises here, at the start of the program, with its file and line. With
    ``share_breakers=False`` every worker has breakers of its own.
    """

    store: Store
    """The store that all of the upstreams share."""

    def __init__(self, settings: Settings, *, share_breakers: bool = True) -> None:
        try:
            self.store = open_store(settings.state or default_url(distributed=True))
        except ValueError as error:
            raise ValueError(f"{settings.state_origin}: {error}") from None
        self._breaker_store: Store = self.store if share_breakers else open_store("memory://")
        self._reloader = settings.reloader
        self._upstreams = {name: self._create(settings, name) for name in settings.upstreams}
        if settings.reloader is not None:
            settings.reloader.subscribe(self)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str] | None = None) -> Upstreams:
        """Read a TOML file and the environment; ``path`` defaults to the value of ``COMPORTA_CONFIG``."""
        from comporta.settings import load_settings  # noqa: PLC0415 - a fifth of the import time of comporta

        return cls(load_settings(path))

    def _prepare_settings(self, old: Settings, new: Settings) -> PreparedChange:
        """Build the upstreams of changed settings; applying the result puts them in force."""
        from comporta.settings.reloader import PreparedChange  # noqa: PLC0415 - see from_file

        require_same_state(old, new)
        changed = [name for name in new.upstreams if _has_changed(name, old, new)]
        for name in changed:
            if name in old.upstreams:
                check_same_strategy(old.upstreams[name].limit, new.upstreams[name].limit)
        with replacing_names() as undo:
            upstreams = {name: self._create(new, name) for name in changed}
        return PreparedChange(partial(self._apply_settings, new, upstreams), undo)

    def _apply_settings(self, new: Settings, upstreams: dict[str, Upstream]) -> None:
        current = {name: upstream for name, upstream in self._upstreams.items() if name in new.upstreams}
        for name, upstream in upstreams.items():
            if name in current:
                current[name]._become(upstream)
            else:
                current[name] = upstream
        self._upstreams = current

    def _create(self, settings: Settings, name: str) -> Upstream:
        """Create an upstream. An error names the table that it comes from."""
        table = settings.upstreams[name]
        limit, retry = _limit(table), _retry(table.retry)
        degradation, breaker = _degradation(table.degradation), _breaker(settings, name)
        with _add_location(table):
            upstream = Upstream(
                name,
                limit,
                breaker=breaker
                and CircuitBreaker(breaker.name, config=breaker.config, state=self._breaker_store),
                retry=retry,
                degradation=degradation,
                state=self.store,
                **_options(table),
            )
        if self._reloader is not None:
            upstream._guards = ReplaceableGuards(self)
        return upstream

    def __getitem__(self, name: str) -> Upstream:
        upstream = self._upstreams.get(name)
        if upstream is None:
            names = ", ".join(map(repr, self._upstreams))
            expected = (
                f"must be one of {names}" if names else "is not defined: the settings have no [upstreams]"
            )
            raise KeyError(f"upstream {expected}, got {name!r:.100}")
        return upstream

    def __iter__(self) -> Iterator[str]:
        return iter(self._upstreams)

    def __len__(self) -> int:
        return len(self._upstreams)

    async def aclose(self) -> None:
        """Close the connections of all upstreams; they reopen when needed."""
        for upstream in self._upstreams.values():
            await upstream.aclose()

    def close(self) -> None:
        """Close the blocking connections of all upstreams; they reopen when needed."""
        for upstream in self._upstreams.values():
            upstream.sync.close()


@contextmanager
def _add_location(table: SettingsTable) -> Iterator[None]:
    """Add the file and line of a table to an error that its values cause."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise table.error_with_origin(error) from error


def _options(table: UpstreamSettings) -> dict[str, Any]:
    """Return the values that are passed to ``Upstream`` as they are."""
    separate = ("limit", "breaker", "retry", "degradation")
    return {field: value for field, value in table.keyword_arguments().items() if field not in separate}


def _limit(table: UpstreamSettings) -> list[LimitConfig]:
    if table.limit is None:
        raise table.field_error("limit", "must be given, such as '10/s', got nothing")
    if table.limit.limit_for is not None:
        raise table.limit.field_error("limit_for", "does not apply to an upstream, which has one limit")
    with _add_location(table.limit):
        return limit_configs_from_settings(table.limit)


def _has_changed(name: str, old: Settings, new: Settings) -> bool:
    if name not in old.upstreams or old.upstreams[name] != new.upstreams[name]:
        return True
    return old.breaker_of(name) != new.breaker_of(name)


class _BreakerSpec(NamedTuple):
    """The name and the configuration of a breaker to create."""

    name: str
    config: BreakerConfig


def _breaker(settings: Settings, name: str) -> _BreakerSpec | None:
    named = settings.breaker_of(name)
    return None if named is None else _BreakerSpec(named[0], breaker_config_from_settings(*named))


def _retry(table: RetrySettings | bool | None) -> Retry | bool:
    if table is None or isinstance(table, bool):
        return table is not False
    options = table.keyword_arguments()
    with _add_location(table):
        return Retry(budget=_budget(options), **options)


def _budget(options: dict[str, Any]) -> Budget:
    """Remove the budget's values from the options of a retry, and return the budget."""
    values = {
        name: options.pop(f"budget_{name}") for name in ("ratio", "least") if f"budget_{name}" in options
    }
    try:
        return Budget(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"budget_{error}") from error


def _degradation(
    table: DegradationSettings | bool | None,
) -> Callable[[BaseLimiter], Degradation] | bool:
    if table is None or isinstance(table, bool):
        return table is not False

    options = {"rule": DEGRADATION_RULE, **table.keyword_arguments()}
    with _add_location(table):
        Degradation(BaseLimiter("1/s"), **options)  # validated now, to report the line
    return partial(Degradation, **options)
