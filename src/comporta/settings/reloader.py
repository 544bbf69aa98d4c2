"""Reloading a settings file that changes while the program runs: ``load_settings(path, reload=True)``.

A thread checks the file four times a second and loads it when it has changed and stopped changing. All
objects that were built from the settings prepare their changes before any of them applies its own. A file
with an error, or one that a running program cannot apply, leaves the old settings in force and publishes the
event ``settings_rejected``. This module does not know what the settings are for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ref

from comporta import events, fork_safety
from comporta.threads import BackgroundThread

if TYPE_CHECKING:
    from comporta.settings.schema import Settings

POLL_SECONDS = 0.25
"""How often the thread checks the file. A change is in force after two to three checks."""

_STOP_SECONDS_MAX = 2.0

FileVersion = tuple[int, int, int] | None
"""The time of the last change, the size and the inode of a file; ``None`` if it cannot be read."""


class PreparedChange(NamedTuple):
    """A change of settings that one object is ready to apply, or to discard because another object is not."""

    apply: Callable[[], None]
    undo: Callable[[], None]


class SettingsUser(Protocol):
    """An object that was built from settings and can apply new ones."""

    def _prepare_settings(self, old: Settings, new: Settings) -> PreparedChange:
        """Build what the new settings need; raise ``ValueError`` for what cannot be applied."""


class SettingsReloader:
    """Keeps the settings of a file current; ``settings`` are those in force."""

    def __init__(self, path: Path, load: Callable[[], Settings]) -> None:
        self.path = path
        self._load = load
        self._version = self._seen = _file_version(path)
        self.settings = load()
        self._users: list[ref[SettingsUser]] = []
        self._lock = Lock()
        self._thread: BackgroundThread | None = None
        self._closed = False
        fork_safety.register(self)
        self._start()

    def subscribe(self, user: SettingsUser) -> None:
        """Register an object to apply every later change, for as long as the program uses it."""
        with self._lock:
            self._users = [*(each for each in self._users if each() is not None), ref(user)]

    def close(self) -> None:
        """End the thread. The settings in force stay in force."""
        self._closed = True
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(_STOP_SECONDS_MAX)

    def after_fork(self) -> None:
        """Start a thread in the child."""
        fork_safety.reinit_lock(self._lock)
        if not self._closed:
            self._start()

    def poll(self) -> None:
        """Load the file if it has changed since it was last loaded, but not since the last check."""
        version, previous = _file_version(self.path), self._seen
        self._seen = version
        if version != previous or version == self._version:
            return
        self._version = version
        try:
            self._reload()
        except (OSError, TypeError, ValueError) as error:
            text = f"the changed file was not applied, the old settings stay in force: {error}"
            events.publish("settings_rejected", str(self.path), text, "error")

    def _reload(self) -> None:
        new = self._load()
        if new == self.settings:
            return
        with self._lock:
            users = [user for each in self._users if (user := each()) is not None]
        changes: list[PreparedChange] = []
        try:
            changes.extend(user._prepare_settings(self.settings, new) for user in users)
        except BaseException:
            for change in reversed(changes):
                change.undo()
            raise
        for change in changes:
            change.apply()
        self.settings = new
        events.publish("settings_reloaded", str(self.path), "the changed file is in force", "info")

    def _start(self) -> None:
        self._thread = thread = BackgroundThread()
        thread.start(_run_loop, ref(self), thread, name="comporta-settings")


def _run_loop(reference: ref[SettingsReloader], thread: BackgroundThread) -> None:
    """Check the file until the thread is asked to stop or nothing uses the reloader any more."""
    while True:
        thread.wake.wait(POLL_SECONDS)
        reloader = reference()
        if reloader is None or thread.stop_requested:
            return
        reloader.poll()
        del reloader


def _file_version(path: Path) -> FileVersion:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
