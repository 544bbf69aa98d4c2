"""A changed settings file is in force within a second; one with an error leaves the old settings in force."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes.fleet import new_state_name, remove_shared_state
from tests.support import Late, wait_until

from comporta import BaseLimiter, RateLimitManager, Upstreams
from comporta.errors import LimitReachedError
from comporta.events import Event, listen
from comporta.settings import Settings, SettingsReloader, load_settings
from comporta.settings import reloader as reloader_module

FIRST = """
[limits.api]
limit = "5/minute"
[limits.old]
limit = "1/s"
[namespaces]
search = "api"
gone = "old"
[upstreams.pncp]
limit = "3/minute"
max_wait = 0
retry = false
breaker = {threshold = 9}
[upstreams.dropped]
limit = "1/s"
"""
SECOND = """
[limits.api]
limit = "7/minute"
[limits.new]
limit = "2/s"
[namespaces]
search = "new"
[upstreams.pncp]
limit = "4/minute"
max_wait = 0
retry = false
timeout = 7
max_concurrent = 5
breaker = {threshold = 2}
[upstreams.added]
limit = "1/s"
"""


class Config:
    """A settings file on a state of its own, and the events about it."""

    def __init__(self, path: Path, state: str) -> None:
        self.path = path
        self.state = state
        self.events: list[Event] = []
        self.write(FIRST)
        self.settings = load_settings(path, {}, reload=True)
        assert self.settings.reloader is not None
        self.reloader: SettingsReloader = self.settings.reloader

    def write(self, text: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(f'state = "{self.state}"\n{text}')
        new.replace(self.path)

    def change(self, text: str) -> None:
        """Change the file and wait until that had an effect, for at most a second."""
        count, began = len(self.events), time.monotonic()
        self.write(text)
        wait_until(lambda: len(self.events) > count)
        self.seconds = time.monotonic() - began


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Config]:
    name = new_state_name()
    config = Config(tmp_path / "comporta.toml", f"shared://{name}")
    stop = listen(lambda event: config.events.append(event) if event.kind.startswith("settings_") else None)
    yield config
    stop()
    config.reloader.close()
    remove_shared_state(name)


def _count_granted(limiter: Any, key: str = "k") -> int:
    return sum(limiter.acquire(key) for _ in range(12))


def test_manager__file_changes__limits_and_policies_are_in_force_within_a_second(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)
    api = manager.limiters["api"]
    assert isinstance(api, BaseLimiter)
    sync = api.sync
    assert _count_granted(sync) == 5
    config.change(SECOND)
    if config.seconds > 1:
        raise Late(f"the change took {config.seconds:.2f} s")
    assert [event.kind for event in config.events] == ["settings_reloaded"]
    assert manager.limiters["api"] is api
    assert (api.config.capacity, api.sync) == (7, sync)
    assert _count_granted(sync, "fresh") == 7
    assert sync.peek("k").limit == 7
    assert sorted(manager.limiters) == ["api", "new"]
    assert dict(manager.policies) == {"search": "new"}
    assert BaseLimiter("7/minute", config.state, "api").config == api.config


def test_upstreams__file_changes__guarded_functions_follow(config: Config) -> None:
    upstreams = Upstreams(config.settings)
    pncp = upstreams["pncp"]
    limiter, call = pncp.limiter, pncp.guard(str)
    assert [call(1) for _ in range(3)] == ["1"] * 3
    with pytest.raises(LimitReachedError):
        call(1)
    limiter.sync.reset()
    config.change(SECOND)
    assert sorted(upstreams) == ["added", "pncp"]
    assert (upstreams["pncp"], pncp.limiter) == (pncp, limiter)
    assert [call(1) for _ in range(4)] == ["1"] * 4
    with pytest.raises(LimitReachedError):
        call(1)
    assert pncp.breaker is not None
    assert pncp.breaker.config.threshold == 2
    assert pncp.permits is not None
    assert pncp._options.timeout == 7
    limiter.sync.reset()
    assert pncp.sync.call(str, 2) == "2"


def test_upstreams__file_changes_and_nothing_is_guarded__calls_follow(config: Config) -> None:
    pncp = Upstreams(config.settings)["pncp"]
    config.change(SECOND)
    assert [pncp.sync.call(str, 1) for _ in range(4)] == ["1"] * 4
    with pytest.raises(LimitReachedError):
        pncp.sync.call(str, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[limits.api\n", "comporta.toml"),
        (FIRST.replace('"5/minute"', '"5/fortnight"'), "comporta.toml:4: .*limit must look like"),
        (FIRST.replace('"3/minute"', '"3/never"'), "limit must look like"),
        (
            FIRST.replace('"5/minute"', '"5/minute"\nstrategy = "sliding_window"'),
            "strategy cannot change while the program runs, from token_bucket, got sliding_window",
        ),
        (
            FIRST.replace('limit = "3/minute"', 'limit = {limit = "3/minute", strategy = "leaky_bucket"}'),
            "strategy cannot change while the program runs, from token_bucket, got leaky_bucket",
        ),
    ],
)
def test_reload__file_with_an_error__leaves_the_old_settings_and_says_why(
    config: Config, text: str, reason: str
) -> None:
    manager, upstreams = RateLimitManager.from_settings(config.settings), Upstreams(config.settings)
    config.change(text)
    [event] = config.events
    assert (event.kind, event.severity) == ("settings_rejected", "error")
    assert event.text.startswith("the changed file was not applied, the old settings stay in force: ")
    assert re.search(reason, event.text)
    api = manager.limiters["api"]
    assert isinstance(api, BaseLimiter)
    assert _count_granted(api.sync) == 5
    assert upstreams["pncp"].limiter.config.capacity == 3
    config.change(SECOND)
    assert config.events[-1].kind == "settings_reloaded"
    assert _count_granted(api.sync, "fresh") == 7


def test_upstreams__file_changes__guarded_coroutine_functions_follow(config: Config) -> None:
    pncp = Upstreams(config.settings)["pncp"]

    @pncp.guard
    async def fetch(page: int) -> int:
        """Fetch."""
        return page

    async def main() -> list[int]:
        return [await fetch(page) for page in range(3)]

    assert asyncio.run(main()) == [0, 1, 2]
    config.change(SECOND)
    pncp.limiter.sync.reset()
    assert asyncio.run(main()) == [0, 1, 2]
    assert (fetch.__doc__, pncp.limiter.sync.peek().remaining) == ("Fetch.", 1)


def test_reload__one_user_cannot_apply__no_user_does(config: Config) -> None:
    manager, upstreams = RateLimitManager.from_settings(config.settings), Upstreams(config.settings)
    config.change(SECOND.replace('"4/minute"', '"4/never"'))
    assert sorted(manager.limiters) == ["api", "old"]
    assert upstreams["pncp"].limiter.config.capacity == 3
    BaseLimiter("5/minute", config.state, "api")  # the name still means the old limit


def test_reload__other_state__is_rejected(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)
    config.state = "memory://other"
    config.change(FIRST)
    assert "state cannot change while the program runs: restart it" in config.events[0].text
    assert manager.limiters


def test_reload__file_removed_and_restored__goes_on(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)
    config.path.unlink()
    wait_until(lambda: len(config.events) == 1)
    assert config.events[0].kind == "settings_rejected"
    config.change(SECOND)
    assert "new" in manager.limiters


def test_reload__file_touched_or_with_another_comment__changes_nothing(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)
    api = manager.limiters["api"]
    for _ in range(2):
        config.write(f"# a comment\n{FIRST}")
        config.reloader.poll()
    config.reloader.poll()
    assert config.events == []
    assert manager.limiters["api"] is api


def test_reload__limiter_replaced_by_the_program__is_registered_anew(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)

    class Own:
        async def acquire(self, key: Any, /) -> bool:
            return True

    manager.register_limiter("api", Own())
    config.change(SECOND)
    assert isinstance(manager.limiters["api"], BaseLimiter)


def test_reload__without_a_file__is_refused() -> None:
    with pytest.raises(ValueError, match="reload needs a file: pass a path, or set COMPORTA_CONFIG"):
        load_settings(environ={}, reload=True)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "comporta-settings"]


def test_reload__not_asked_for__starts_no_thread(config: Config) -> None:
    assert len(_threads()) == 1
    assert load_settings(config.path, {}).reloader is None
    assert len(_threads()) == 1
    config.reloader.close()
    config.reloader.close()
    wait_until(lambda: not _threads())


def test_reload__settings_no_longer_used__the_thread_ends(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloader_module, "POLL_SECONDS", 0.01)
    settings: Settings | None = load_settings(config.path, {}, reload=True)
    assert settings is not None
    assert len(_threads()) == 2
    settings = None
    gc.collect()
    wait_until(lambda: len(_threads()) == 1)


def test_reload__forked_worker__follows_the_file_too(config: Config) -> None:
    manager = RateLimitManager.from_settings(config.settings)
    api = manager.limiters["api"]
    assert isinstance(api, BaseLimiter)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            wait_until(lambda: api.config.capacity == 7)
            os.write(writing, b"7")
        finally:
            os._exit(0)
    config.write(SECOND)
    os.waitpid(child, 0)
    os.close(writing)
    assert os.read(reading, 1) == b"7"
    os.close(reading)


def test_reload__after_a_fork__starts_a_thread_of_its_own(config: Config) -> None:
    config.reloader._thread = None  # as in a child, where the parent's thread does not run
    config.reloader.after_fork()
    wait_until(lambda: len(_threads()) == 2)


def test_reload__after_close__a_fork_starts_no_thread(config: Config) -> None:
    config.reloader.close()
    config.reloader.after_fork()
    wait_until(lambda: not _threads())
