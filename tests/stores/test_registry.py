"""URL schemes of third-party engines, and the failover they get when they are opened (F10)."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import wait_until

from comporta import TokenBucketLimiter, state_schemes
from comporta.errors import StateError, StateTimeoutError, StateUnavailableError
from comporta.settings import load_settings
from comporta.state_schemes import BUILT_IN_SCHEMES, check_scheme, register_scheme, scheme_names
from comporta.stores.base import Operation, Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.stores.registry import close_stores, open_store, resolve_store


class Engine(Store):
    """A third-party engine with the required methods only, whose backend a test can take away."""

    address = "engine://backend"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._backend = MemoryStore()

    def apply(self, operation: Operation[Any]) -> Any:
        if self.error is not None:
            raise self.error
        return self._backend.apply(operation)

    async def apply_async(self, operation: Operation[Any]) -> Any:
        return self.apply(operation)


class ListingEngine(Engine):
    """An engine that can also list its records."""

    def entries(self, space: str) -> dict[str, bytes]:
        if self.error is not None:
            raise self.error
        return self._backend.entries(space)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Return the engine that engine:// URLs open."""
    monkeypatch.setattr(state_schemes, "_registered", {})
    opened = ListingEngine()
    register_scheme("engine", lambda _: opened)
    yield opened
    close_stores()


def test_open_store__registered_scheme__is_opened_once_with_failover(engine: Engine) -> None:
    store = open_store("engine://host/x?a=1")
    assert isinstance(store, FailoverStore)
    assert store.primary is engine
    assert store.address == "engine://backend"
    assert open_store("engine://host/x?a=1") is store
    assert open_store("engine://host/other") is not store


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StateUnavailableError("the backend is gone"), "the backend is gone"),
        (ConnectionRefusedError(111, "Connection refused"), "engine://backend cannot be used: .*refused"),
        (TimeoutError(), "engine://backend did not answer in time; the operation may have .*: TimeoutError"),
    ],
)
def test_engine__backend_taken_away__callers_use_the_share_until_it_is_back(
    engine: Engine, error: Exception, reason: str
) -> None:
    limiter = TokenBucketLimiter("1000/s burst 10", "engine://x", "n")
    assert limiter.sync.acquire()
    engine.error = error
    assert limiter.sync.acquire() in (True, False)
    assert asyncio.run(limiter.acquire()) in (True, False)
    assert limiter.fallback is not None
    assert re.search(reason, limiter.fallback.reason)
    assert limiter.sync.acquire(timeout=5), "the only worker has the whole limit as its share"
    engine.error = None
    wait_until(lambda: limiter.fallback is None)
    assert limiter.sync.acquire(timeout=5)


def test_engine__raw_os_error_where_there_is_no_share__is_a_state_error(engine: Engine) -> None:
    store = open_store("engine://x")
    store.apply(WriteRecord("s", "k", b"x", None))
    engine.error = OSError("disk on fire")
    with pytest.raises(StateUnavailableError, match="engine://backend cannot be used: disk on fire"):
        store.entries("s")
    with pytest.raises(StateUnavailableError, match="disk on fire"):
        asyncio.run(store.entries_async("s"))
    with pytest.raises(StateUnavailableError, match="disk on fire"):
        store.apply_many([ReadRecord("s", "k")])
    assert store.fallback is not None
    with pytest.raises(StateUnavailableError, match="not possible without the shared state"):
        store.apply_many([ReadRecord("s", "k")])


def test_engine__other_exception__reaches_the_caller(engine: Engine) -> None:
    limiter = TokenBucketLimiter("10/s", "engine://x", "n").sync
    engine.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        limiter.acquire()


@pytest.mark.parametrize("error", [StateUnavailableError("away"), StateTimeoutError("late"), OSError("away")])
def test_open_store__backend_away__starts_in_fallback_and_is_opened_later(
    monkeypatch: pytest.MonkeyPatch, error: StateError | OSError
) -> None:
    monkeypatch.setattr(state_schemes, "_registered", {})
    errors = [error] * 3

    def open_engine(_: str) -> Engine:
        if errors:
            raise errors.pop()
        return Engine()

    register_scheme("engine", open_engine)
    limiter = TokenBucketLimiter("10/s", "engine://user:secret@host/x", "n")
    assert limiter.store.address == "engine://host/x", "without credentials"
    limiter.sync.acquire()
    assert limiter.fallback is not None
    wait_until(lambda: limiter.fallback is None)
    assert limiter.sync.acquire(timeout=5)
    close_stores()


def test_open_store__engine_that_is_not_shared__gets_no_failover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_schemes, "_registered", {})
    private = MemoryStore()
    register_scheme("engine", lambda _: private)
    assert open_store("engine://x") is private
    close_stores()


def test_bind__engine_without_the_bound_limit_it_promises__is_a_type_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class PromisingEngine(Engine):
        decides_in_process = True

    monkeypatch.setattr(state_schemes, "_registered", {})
    register_scheme("engine", lambda _: PromisingEngine())
    limiter = TokenBucketLimiter("10/s", "engine://x", "n").sync
    limiter.acquire()  # the first use goes through the store
    with pytest.raises(
        TypeError, match=r"PromisingEngine sets decides_in_process, so its bind\(\) must return"
    ):
        limiter.acquire()
    close_stores()


def test_open_store__engine_with_its_own_failover__is_not_wrapped_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_schemes, "_registered", {})
    wrapped = FailoverStore.wrap(Engine(), "engine://x")
    register_scheme("engine", lambda _: wrapped)
    assert open_store("engine://x") is wrapped
    close_stores()


def test_open_store__opener_returns_something_else__is_a_type_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_schemes, "_registered", {})
    register_scheme("engine", lambda _: object())
    with pytest.raises(TypeError, match="the opener of engine:// must return a Store, got <object"):
        open_store("engine://x")


def test_open_store__engine_that_opens_another__does_not_deadlock(engine: Engine) -> None:
    register_scheme("outer", lambda _: open_store("engine://x"))
    assert open_store("outer://x") is open_store("engine://x")


def test_resolve_store__neither_url_nor_store__is_a_type_error(engine: Engine) -> None:
    assert resolve_store(engine) is engine
    with pytest.raises(TypeError, match="state must be a URL or a store, got <object"):
        resolve_store(object())  # type: ignore[arg-type]


def test_scheme__in_the_environment_and_in_a_settings_file__is_accepted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "engine://x")
    limiter = TokenBucketLimiter("10/s", None, "n")
    assert limiter.store.primary is not engine, "a limiter that is not distributed has its own memory"
    file = tmp_path / "comporta.toml"
    file.write_text('state = "engine://x"\n[limits.api]\nlimit = "10/s"\n')
    assert load_settings(file, {}).state == "engine://x"
    with pytest.raises(
        ValueError, match=r"state must start with one of memory://, .*, engine://, got 'other'"
    ):
        load_settings(file, {"COMPORTA_STATE": "other"})


@pytest.mark.parametrize("url", ["other://x", "engine", "engine:x", ""])
def test_open_store__unknown_scheme__names_the_known_ones(engine: Engine, url: str) -> None:
    with pytest.raises(
        ValueError, match=r"state must start with one of memory://, shared://.*, engine://, got"
    ):
        open_store(url)


def test_check_scheme__password_in_the_url__is_not_shown(engine: Engine) -> None:
    with pytest.raises(ValueError, match="got 'host/x'") as raised:
        check_scheme("other://user:hunter2@host/x?password=hunter2")
    assert "hunter2" not in str(raised.value)


def test_register_scheme__name_taken__is_refused_unless_it_is_the_same_function(engine: Engine) -> None:
    def open_other(_: str) -> Engine:
        raise NotImplementedError

    register_scheme("other", open_other)
    register_scheme("other", open_other)
    with pytest.raises(
        ValueError, match="scheme 'other' is already registered, with <function test_register_scheme"
    ):
        register_scheme("other", lambda _: engine)
    for name in BUILT_IN_SCHEMES:
        with pytest.raises(ValueError, match=re.escape(f"scheme '{name}' is built in: choose another name")):
            register_scheme(name, open_other)


@pytest.mark.parametrize("name", ["", "Upper", "1st", "a_b", "a://"])
def test_register_scheme__impossible_name__is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="scheme must be of a-z 0-9 "):
        register_scheme(name, lambda _: None)


def test_register_scheme__not_a_function__is_a_type_error() -> None:
    with pytest.raises(TypeError, match="open must be a function from a URL to a store, got 'x'"):
        register_scheme("engine", "x")  # type: ignore[arg-type]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that installs a package which provides a scheme as an entry point."""
    monkeypatch.setattr(state_schemes, "_registered", {})
    monkeypatch.syspath_prepend(tmp_path)

    def install_package(name: str, scheme: str) -> None:
        (tmp_path / f"{name}.py").write_text(
            "from comporta.stores.memory import MemoryStore\n"
            "class InstalledStore(MemoryStore):\n    shared = True\n"
            "def open_store(url):\n    return InstalledStore()\n"
        )
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[comporta.stores]\n{scheme} = {name}:open_store\n")

    yield install_package
    close_stores()
    for name in ("engine_one", "engine_two"):
        sys.modules.pop(name, None)


def test_entry_point__installed_package__provides_its_scheme(install: Any) -> None:
    with pytest.raises(ValueError, match="state must start with one of"):
        open_store("installed://x")
    install("engine_one", "installed")
    assert "installed" in scheme_names()
    check_scheme("installed://x")
    assert "engine_one" not in sys.modules, "checking a scheme loads no engine"
    limiter = TokenBucketLimiter("10/s", "installed://x", "n")
    assert limiter.sync.acquire()
    assert type(limiter.store.primary).__name__ == "InstalledStore"


def test_entry_point__provided_by_two_packages__is_refused_naming_both(install: Any) -> None:
    install("engine_one", "installed")
    install("engine_two", "installed")
    both = "engine_one:open_store, engine_two:open_store"
    with pytest.raises(
        ValueError, match=f"several installed packages provide installed://: {both}; keep one"
    ):
        open_store("installed://x")


def test_entry_point__url_on_the_command_line__is_opened(install: Any, tmp_path: Path) -> None:
    install("engine_one", "installed")
    ran = subprocess.run(
        [sys.executable, "-m", "comporta.cli", "workers", "installed://x"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
