"""All upstreams of a program, from one file: ``Upstreams.from_file("comporta.toml")["pncp"]``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import configured
from comporta.limits.config import LimitConfig
from comporta.limits.degradation import Degradation
from comporta.limits.limiter import BaseLimiter
from comporta.limits.manager import config_of
from comporta.retry.budget import Budget
from comporta.retry.retry import Retry
from comporta.stores.base import Store
from comporta.stores.urls import default_url, open_store
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.settings import DegradationSettings, RetrySettings, Settings, UpstreamSettings
    from comporta.settings.written import Written


class Upstreams(Mapping[str, Upstream]):
    """Upstreams by name. What is wrong with the settings is found here, at the start, with its place.

    ``share_breakers`` false: every worker has breakers of its own, whatever the state.
    """

    def __init__(self, settings: Settings, *, share_breakers: bool = True) -> None:
        try:
            self.store: Store = open_store(settings.state or default_url(distributed=True))
        except ValueError as error:
            raise ValueError(f"{settings.state_source}: {error}") from None
        self._breakers: Store = self.store if share_breakers else open_store("memory://")
        self._made = {name: self._upstream(settings, name) for name in settings.upstreams}

    @classmethod
    def from_file(cls, path: str | os.PathLike[str] | None = None) -> Upstreams:
        """Read a TOML file and the environment; ``path`` left out is what ``COMPORTA_CONFIG`` says."""
        from comporta.settings import load_settings  # noqa: PLC0415 - a fifth of what importing comporta costs

        return cls(load_settings(path))

    def _upstream(self, settings: Settings, name: str) -> Upstream:
        """Make an upstream; each table answers for its own mistakes, the upstream's for the rest."""
        written = settings.upstreams[name]
        limit, retry = _limit(written), _retry(written.retry)
        degradation, breaker = _degradation(written.degradation), _breaker(settings, name)
        with _blamed(written):
            return Upstream(
                name,
                limit,
                breaker=breaker and CircuitBreaker(breaker.name, config=breaker.config, state=self._breakers),
                retry=retry,
                degradation=degradation,
                state=self.store,
                **_options(written),
            )

    def __getitem__(self, name: str) -> Upstream:
        found = self._made.get(name)
        if found is None:
            known = ", ".join(map(repr, self._made))
            what = f"must be one of {known}" if known else "cannot be any: none is described"
            raise KeyError(f"upstream {what}, got {name!r:.100}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)

    async def aclose(self) -> None:
        """Close the connections to the state; they open again when needed."""
        for upstream in self._made.values():
            await upstream.aclose()


@contextmanager
def _blamed(written: Written) -> Iterator[None]:
    """Add the place in the file to what is found wrong with what it says."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise written.blamed(error) from error


def _options(written: UpstreamSettings) -> dict[str, Any]:
    """Return what was written that an upstream takes as it is; ``False`` in place of a number is none."""
    tables = ("limit", "breaker", "retry", "degradation")
    return {field: value for field, value in written.given().items() if field not in tables}


def _limit(written: UpstreamSettings) -> LimitConfig:
    if written.limit is None:
        raise written.wrong("limit", "must be given, such as '10/s', got nothing")
    with _blamed(written.limit):
        return config_of(written.limit)


class _Named(NamedTuple):
    """A breaker that is still to be made."""

    name: str
    config: BreakerConfig


def _breaker(settings: Settings, name: str) -> _Named | None:
    found = settings.breaker_of(name)
    return None if found is None else _Named(found[0], configured(*found))


def _retry(written: RetrySettings | bool | None) -> Retry | bool:
    if written is None or isinstance(written, bool):
        return written is not False
    given = written.given()
    with _blamed(written):
        return Retry(budget=_budget(given), **given)


def _budget(given: dict[str, Any]) -> Budget:
    """Take the fields of the budget out of those of a retry; mistakes are told by the names there."""
    own = {name: given.pop(f"budget_{name}") for name in ("ratio", "least") if f"budget_{name}" in given}
    try:
        return Budget(**own)
    except (TypeError, ValueError) as error:
        raise ValueError(f"budget_{error}") from error


def _degradation(
    written: DegradationSettings | bool | None,
) -> Callable[[BaseLimiter], Degradation] | bool:
    if written is None or isinstance(written, bool):
        return written is not False

    given = written.given()
    with _blamed(written):
        Degradation(BaseLimiter("1/s"), **given)  # checked now, with its place; made when there is a limiter
    return partial(Degradation, **given)
