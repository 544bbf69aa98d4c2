"""``FleetPublisher``: a background thread that publishes this worker's part of the fleet status.

The thread publishes every 2 s while a page or ``comporta top`` shows the status, and otherwise every 10 s:
every reader leaves a record, which the heartbeat polls. No caller waits for the thread or gets one of its
errors. ``status_writer.py`` decides what to publish; this module decides only when the thread runs: from
``start`` to ``close``, and not during a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakMethod, ref

from comporta import events, fork_safety
from comporta.fleet.reader import FLEET, WATCHED
from comporta.fleet.status_writer import FleetStatusWriter
from comporta.fleet.worker_watch import RECHECK_SECONDS
from comporta.threads import BackgroundThread
from comporta.validators import require_number

if TYPE_CHECKING:
    from comporta.fleet.counters import FleetCounters
    from comporta.stores.base import Store
    from comporta.upstream.upstream import Upstream

INTERVAL_SECONDS: Final = 2.0

UNWATCHED_INTERVALS: Final = 5
"""Without a reader, the worker publishes only once in this many intervals."""

_CLOSE_SECONDS = 1.0


class FleetPublisher:
    """Publishes counters, upstream health and events of this worker to a store, from ``start`` to ``close``.

    ``upstreams`` are published under their names; ``counters`` is the metrics sink that counts their calls.
    A publisher that was started continues in a forked child when the child counts something.
    """

    def __init__(
        self,
        store: Store,
        upstreams: Mapping[str, Upstream],
        counters: FleetCounters,
        *,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        require_number("interval", interval, 0.01, 10, unit="seconds")
        self._pending = counters._pending
        self._writer = FleetStatusWriter(store, upstreams, self._pending, interval)
        self._loop = PublisherLoop(self._writer, interval)
        self._unsubscribe: Callable[[], None] | None = None
        store.follow(FLEET, WATCHED, WeakMethod(self._loop.on_watched))

    def start(self) -> None:
        """Start the thread and record events; a second call has no effect."""
        if self._unsubscribe is None:
            self._unsubscribe = events.listen(_weak_callback(self._writer.events.record))
        self._pending.on_pending = _weak_callback(self._loop.ensure_running)
        self._loop.start()

    def publish(self) -> None:
        """Publish once, on this thread; what cannot be sent is kept for the next time."""
        self._writer.publish()

    def close(self) -> None:
        """Publish the rest, for up to 1 s, and end the thread."""
        self._pending.on_pending = None
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()
        self._loop.close()


class PublisherThread(BackgroundThread):
    """One run of the thread; ``publishes_rest`` is whether it publishes once more when it stops."""

    __slots__ = ("publishes_rest",)

    def __init__(self) -> None:
        super().__init__()
        self.publishes_rest = False


class PublisherLoop:
    """Runs the writer every ``interval`` seconds, or less often; the thread does not keep this object alive.

    ``is_watched``: there is a reader, or this worker does not know whether there is.
    """

    def __init__(self, writer: FleetStatusWriter, interval: float) -> None:
        self.writer = writer
        self.thread: PublisherThread | None = None
        self.is_watched = True
        self._interval = interval
        self._is_started = False
        self._lock = Lock()
        fork_safety.register(self)
        fork_safety.register_thread_owner(self)

    def start(self) -> None:
        """Start the thread."""
        self._is_started = True
        self.ensure_running()

    def close(self) -> None:
        """Let the thread publish once more, for up to 1 s, and end it."""
        self._is_started = False
        with self._lock:
            thread, self.thread = self.thread, None
        if thread is not None:
            thread.publishes_rest = True
            thread.stop(_CLOSE_SECONDS)

    def ensure_running(self) -> None:
        """Start the thread if it should run but does not, as in a forked child."""
        if self._is_started and not self._is_running():
            with self._lock:
                if not self._is_running():
                    # set before it starts: an interrupt in between must not lead to a second thread
                    thread = self.thread = PublisherThread()
                    if not thread.start(_run_loop, ref(self), thread, name="comporta-fleet"):
                        self.thread = None

    def on_watched(self, record: bytes | None) -> None:
        """Publish as often as readers need it from now on; ``None``: there are no readers."""
        was_watched, self.is_watched = self.is_watched, record is not None
        thread = self.thread
        if self.is_watched and not was_watched and thread is not None:
            thread.wake.set()

    def next_interval(self) -> float:
        """Return the seconds until the next run, for which the records of the writer must last."""
        self.writer.interval = self._interval * (1 if self.is_watched else UNWATCHED_INTERVALS)
        is_urgent = self.writer.workers.has_suspects and self.writer.interval > RECHECK_SECONDS
        return RECHECK_SECONDS if is_urgent else self.writer.interval

    def before_fork(self) -> None:
        """Stop the thread during a fork."""
        if self.thread is not None:
            self.thread.stop(_CLOSE_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Start the thread again."""
        self.ensure_running()

    def after_fork(self) -> None:
        """Drop the parent's thread in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self.thread = None

    def _is_running(self) -> bool:
        thread = self.thread
        return thread is not None and not thread.stop_requested and thread.is_alive()


def _weak_callback(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method without keeping its object alive."""
    weak_method = WeakMethod(method)

    def callback(*args: Any) -> None:
        target = weak_method()
        if target is not None:
            target(*args)

    return callback


def _run_loop(loop_ref: ref[PublisherLoop], thread: PublisherThread) -> None:
    """Publish until the loop is closed or garbage collected; between two runs nothing here references it."""
    while True:
        thread.wake.wait(_interval_of(loop_ref()))
        is_last = thread.stop_requested  # read before the run: counts made during it need one more run
        loop = loop_ref()
        if loop is None or (is_last and not thread.publishes_rest):
            return
        try:
            loop.writer.publish()
        except Exception as error:  # a bug; without the event, the end of the thread would go unnoticed
            loop.writer.report_once("comporta", repr(error))
        if is_last:
            return
        del loop


def _interval_of(loop: PublisherLoop | None) -> float:
    return 0.0 if loop is None else loop.next_interval()
