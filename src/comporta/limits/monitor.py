"""What is written down about decisions: figures for the monitoring, lines for the log.

Nothing here can stop or change a decision: a sink that fails is mentioned in the log and otherwise ignored.
Neither can a stranger who chooses keys: they cannot forge a line, flood the log, or make up ever new labels.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from comporta.clock import MONOTONIC, Clock
from comporta.limits.key import LimitKey, printable
from comporta.metrics import OTHER, Metrics, current_metrics

if TYPE_CHECKING:
    import logging

    from comporta.limits.verbs import Key

DEFAULT: Final = "default"
"""The namespace of a key that has none."""

NAMESPACES_MAX = 1000
"""How many namespaces get a label of their own; the others are labelled ``other``."""

NAMESPACE_CHARS_MAX = 100
"""A longer namespace is labelled ``other``."""

LINE_EVERY_NS = 1_000_000_000
"""The least time between two log lines on the same subject."""

_SUBJECTS_MAX = 10_000
_ERROR_CHARS_MAX = 500


class RateLimitMonitor:
    """Records what limiters do.

    ``metrics`` is where the figures go; left out it is the sink of this process at the time of each call
    (:func:`comporta.metrics.use_metrics`), so with none nothing is recorded.
    """

    def __init__(self, metrics: Metrics | None = None, *, clock: Clock = MONOTONIC) -> None:
        self._metrics = metrics
        self._labels = Labels()
        self._gate = Gate(clock)

    async def record_operation(
        self, limiter: str, namespace: str, allowed: bool = True, duration: float = 0.0, **labels: str
    ) -> None:
        """Count an operation, and note how many seconds it took if it was allowed."""
        sink = self.sink()
        if sink is None:
            return
        namespace = self._labels.of(namespace)
        try:
            said = "true" if allowed else "false"
            sink.counter(
                "rate_limit_operations", 1, limiter=limiter, namespace=namespace, allowed=said, **labels
            )
            if allowed:
                sink.histogram(
                    "rate_limit_duration", duration, limiter=limiter, namespace=namespace, **labels
                )
        except Exception as error:
            self._sink_failed(error)

    def sink(self) -> Metrics | None:
        """Return where figures go at the moment."""
        return current_metrics() if self._metrics is None else self._metrics

    def reserve(self, namespace: str) -> None:
        """Give a namespace its own label, however many there are: the program named it, no stranger."""
        self._labels.reserve(namespace)

    def decided(self, sink: Metrics, limiter: str, key: Key, allowed: bool, duration: float) -> None:
        """Record that a limiter answered, after so many seconds."""
        namespace = self._labels.of(namespace_of(key))
        try:
            said = "true" if allowed else "false"
            sink.counter("rate_limit_requests", 1, limiter=limiter, namespace=namespace, allowed=said)
            sink.histogram("rate_limit_duration", duration, limiter=limiter, namespace=namespace)
            if not allowed:
                sink.counter("rate_limit_exceeded", 1, limiter=limiter, namespace=namespace)
        except Exception as error:
            self._sink_failed(error)

    def refused(self, limiter: str, key: Key) -> None:
        """Say in the log that a limit was exceeded."""
        namespace = self._labels.of(namespace_of(key))
        held_back = self._gate.held_back("refused", limiter, namespace)
        if held_back is not None:
            shown = printable(str(key))
            _logger().warning(
                "Rate limit exceeded: limiter %s, key %s%s",
                limiter,
                shown,
                _more(held_back),
                extra={"limiter": limiter, "namespace": namespace, "key": shown, "suppressed": held_back},
            )

    def failed(self, limiter: str, key: Key, error: Exception) -> None:
        """Record and say in the log that a limiter raised instead of answering."""
        namespace = self._labels.of(namespace_of(key))
        sink = self.sink()
        if sink is not None:
            try:
                sink.counter("rate_limit_errors", 1, limiter=limiter, namespace=namespace)
            except Exception as lost:
                self._sink_failed(lost)
        held_back = self._gate.held_back("failed", limiter, namespace)
        if held_back is not None:
            shown, said = printable(str(key)), _one_line(error)
            _logger().error(
                "Rate limit check failed: limiter %s, key %s: %s%s",
                limiter,
                shown,
                said,
                _more(held_back),
                extra={
                    "limiter": limiter,
                    "namespace": namespace,
                    "key": shown,
                    "error": said,
                    "suppressed": held_back,
                },
            )

    def _sink_failed(self, error: Exception) -> None:
        held_back = self._gate.held_back("metrics")
        if held_back is not None:
            said = _one_line(error)
            extra = {"error": said, "suppressed": held_back}
            _logger().error("Metrics were lost: %s%s", said, _more(held_back), extra=extra)


class Labels:
    """Namespaces as labels: short, printable, and not too many."""

    def __init__(self) -> None:
        self._by_namespace = {DEFAULT: DEFAULT}
        self._lock = Lock()

    def of(self, namespace: str) -> str:
        """Return the label of a namespace."""
        return self._by_namespace.get(namespace) or self._new(namespace)

    def reserve(self, namespace: str) -> None:
        """Keep a label for a namespace."""
        with self._lock:
            self._by_namespace[namespace] = _label(namespace)

    def _new(self, namespace: str) -> str:
        if len(namespace) > NAMESPACE_CHARS_MAX:
            return OTHER
        with self._lock:
            if len(self._by_namespace) >= NAMESPACES_MAX:
                return OTHER
            return self._by_namespace.setdefault(namespace, _label(namespace))


class Gate:
    """Lets one line a second pass for each subject, and counts those it held back.

    It remembers 10,000 subjects; when there are more it begins anew, and a line may come sooner.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._subjects: dict[tuple[str, ...], tuple[int, int]] = {}

    def held_back(self, *subject: str) -> int | None:
        """Return how many lines were held back since the last, or ``None`` to hold back this one too."""
        now_ns = self._clock.now_ns()
        with self._lock:
            since_ns, held_back = self._subjects.get(subject, (now_ns - LINE_EVERY_NS, 0))
            if now_ns - since_ns < LINE_EVERY_NS:
                self._subjects[subject] = since_ns, held_back + 1
                return None
            if len(self._subjects) >= _SUBJECTS_MAX:
                self._subjects.clear()
            self._subjects[subject] = now_ns, 0
            return held_back


def namespace_of(key: Key) -> str:
    """Return a key's namespace; of a plain ``str`` it is what stands before the first colon, as written."""
    if isinstance(key, LimitKey):
        return key.namespace
    if isinstance(key, str):
        end = key.find(":")
        if end > 0:
            return key[:end]
    return DEFAULT


def _label(namespace: str) -> str:
    shown = namespace if namespace.isprintable() else printable(namespace)
    return shown[:NAMESPACE_CHARS_MAX] or DEFAULT


def _one_line(error: Exception) -> str:
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:_ERROR_CHARS_MAX]


def _more(held_back: int) -> str:
    return f" ({held_back} more since the last line)" if held_back else ""


def _logger() -> logging.Logger:
    import logging  # noqa: PLC0415 - costs 6 ms, and most programs never get here

    return logging.getLogger("comporta.limits")
