"""The results of calls that this process has counted but not yet reported to the store.

Successes are reported together with the next operation on the circuit, so that a successful call costs no
round trip. Nothing here knows the circuit's phase or the store.
"""

from __future__ import annotations

from collections.abc import Callable

from comporta.breaker.admission import Admission
from comporta.breaker.config import BreakerConfig
from comporta.stores.failover.worker_registry import HEARTBEAT_SECONDS

REFRESH_MARGIN_NS = int(1.3 * HEARTBEAT_SECONDS * 1e9)
"""The heartbeat polls at least this often, with a margin for a late thread."""

_REPORT_AFTER_NS = int(0.7 * HEARTBEAT_SECONDS * 1e9)
"""The heartbeat reports counts that are older than this, about once a second."""


class CallCounters:
    """Successes and slow calls of this process since its last report, and the time of its last success.

    ``in_process`` is true if the store decides in this process, so that a report costs no round trip.
    """

    __slots__ = (
        *("_now_ns", "_report_every_ns", "_slow_ns", "_started_ns", "_window_ns"),
        *("calls", "slow", "succeeded_ns"),
    )

    def __init__(self, config: BreakerConfig, now_ns: Callable[[], int], *, in_process: bool) -> None:
        rules = config._rules
        self.calls = 0
        self.slow = 0
        self.succeeded_ns = -1
        self._now_ns = now_ns
        self._started_ns = 0
        self._slow_ns = None if config.slow_seconds is None else round(config.slow_seconds * 1e9)
        self._window_ns = rules.window_us * 1000
        self._report_every_ns = max(rules.slice_us * 1000, 0 if in_process else REFRESH_MARGIN_NS)

    def count_success(self) -> bool:
        """Count a success for the window; false if the counts must be reported before they are too old.

        Where a heartbeat runs, it reports them in time; without one the caller must.
        """
        now_ns = self._now_ns()
        if not self.calls or now_ns - self._started_ns >= self._window_ns:
            self.calls, self._started_ns = 0, now_ns
        self.calls += 1
        return now_ns - self._started_ns < self._report_every_ns

    def is_report_due(self, now_ns: int) -> bool:
        """Whether the heartbeat should report the counts now."""
        return self.calls > 0 and now_ns - self._started_ns >= _REPORT_AFTER_NS

    def count_if_slow(self, admission: Admission) -> None:
        """Count a call that ends now if it was slow, whatever its result."""
        if self._slow_ns is not None and self._now_ns() - admission.started_ns >= self._slow_ns:
            self.slow += 1

    def take(self) -> tuple[int, int]:
        """Return the successes and slow calls to report now, and reset both.

        Successes that have left the window are dropped.
        """
        calls, self.calls = self.calls, 0
        slow, self.slow = self.slow, 0
        recent = self._now_ns() - self._started_ns < self._window_ns
        return (calls if recent else 0), slow

    def discard(self) -> None:
        """Drop all counts: after a fork the parent reports them."""
        self.calls = self.slow = 0

    def succeeded_us(self) -> int:
        """Return when this process last succeeded, on its own clock; -1 if it never did."""
        return self.succeeded_ns // 1000
