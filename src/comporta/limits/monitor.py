"""Metrics and log lines about the decisions of limiters.

Nothing here can prevent or change a decision: the failure of a metrics sink is logged and otherwise ignored.
A client that chooses keys cannot forge a log line, flood the log, or create an unbounded number of labels.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final

from comporta.clock import MONOTONIC, Clock
from comporta.limits.key import LimitKey, printable_text
from comporta.metrics import OTHER, Metrics, current_metrics

if TYPE_CHECKING:
    import logging

    from comporta.limits.flows import Key

DEFAULT_NAMESPACE: Final = "default"
"""The namespace of a key without one."""

NAMESPACES_MAX = 1000
"""How many namespaces get their own label; the others share the label ``other``."""

NAMESPACE_CHARS_MAX = 100
"""A longer namespace gets the label ``other``."""

LOG_INTERVAL_NS = 1_000_000_000
"""The shortest time between two log lines on the same subject."""

_SUBJECTS_MAX = 10_000
_ERROR_CHARS_MAX = 500


class RateLimitMonitor:
    """Records operations of limiters as metrics.

    ``metrics`` is the sink; by default it is the sink of this process at the time of each call
    (:func:`comporta.metrics.use_metrics`), so without one nothing is recorded.
    """

    def __init__(self, metrics: Metrics | None = None, *, clock: Clock = MONOTONIC) -> None:
        self._recorder = DecisionRecorder(metrics, clock=clock)

    async def record_operation(
        self, limiter: str, namespace: str, allowed: bool = True, duration: float = 0.0, **labels: str
    ) -> None:
        """Count an operation, and record how many seconds it took if it was allowed."""
        self._recorder.record_operation(limiter, namespace, allowed, duration, labels)


class DecisionRecorder:
    """Records decisions as metrics, and logs refusals and errors; the manager uses it for every call."""

    def __init__(self, metrics: Metrics | None = None, *, clock: Clock = MONOTONIC) -> None:
        self._metrics = metrics
        self._labels = NamespaceLabels()
        self._log_throttle = LogThrottle(clock)

    def sink(self) -> Metrics | None:
        """Return the current metrics sink."""
        return current_metrics() if self._metrics is None else self._metrics

    def reserve(self, namespace: str) -> None:
        """Give a namespace its own label, however many there are, because the program itself named it."""
        self._labels.reserve(namespace)

    def record_operation(
        self, limiter: str, namespace: str, allowed: bool, duration: float, labels: dict[str, str]
    ) -> None:
        """Count an operation that the program reports."""
        sink = self.sink()
        if sink is None:
            return
        names = {"limiter": limiter, "namespace": self._labels.label(namespace), **labels}
        try:
            sink.counter("rate_limit_operations", 1, allowed=_boolean_label(allowed), **names)
            if allowed:
                sink.histogram("rate_limit_duration", duration, **names)
        except Exception as error:
            self._log_sink_error(error)

    def record_decision(self, sink: Metrics, limiter: str, key: Key, allowed: bool, duration: float) -> None:
        """Count a decision of a limiter, and record how many seconds it took."""
        namespace = self._labels.label(key_namespace(key))
        try:
            answer = _boolean_label(allowed)
            sink.counter("rate_limit_requests", 1, limiter=limiter, namespace=namespace, allowed=answer)
            sink.histogram("rate_limit_duration", duration, limiter=limiter, namespace=namespace)
            if not allowed:
                sink.counter("rate_limit_exceeded", 1, limiter=limiter, namespace=namespace)
        except Exception as error:
            self._log_sink_error(error)

    def log_refusal(self, limiter: str, key: Key) -> None:
        """Log that a limit was exceeded."""
        namespace = self._labels.label(key_namespace(key))
        suppressed = self._log_throttle.suppressed_count("refused", limiter, namespace)
        if suppressed is not None:
            shown = printable_text(str(key))
            _logger().warning(
                "Rate limit exceeded: limiter %s, key %s%s",
                limiter,
                shown,
                _suppressed_note(suppressed),
                extra={"limiter": limiter, "namespace": namespace, "key": shown, "suppressed": suppressed},
            )

    def record_error(self, limiter: str, key: Key, error: Exception) -> None:
        """Count and log that a limiter raised instead of deciding."""
        namespace = self._labels.label(key_namespace(key))
        sink = self.sink()
        if sink is not None:
            try:
                sink.counter("rate_limit_errors", 1, limiter=limiter, namespace=namespace)
            except Exception as sink_error:
                self._log_sink_error(sink_error)
        suppressed = self._log_throttle.suppressed_count("failed", limiter, namespace)
        if suppressed is not None:
            shown, text = printable_text(str(key)), _error_text(error)
            _logger().error(
                "Rate limit check failed: limiter %s, key %s: %s%s",
                limiter,
                shown,
                text,
                _suppressed_note(suppressed),
                extra={
                    "limiter": limiter,
                    "namespace": namespace,
                    "key": shown,
                    "error": text,
                    "suppressed": suppressed,
                },
            )

    def _log_sink_error(self, error: Exception) -> None:
        suppressed = self._log_throttle.suppressed_count("metrics")
        if suppressed is not None:
            text = _error_text(error)
            extra = {"error": text, "suppressed": suppressed}
            _logger().error("Metrics were lost: %s%s", text, _suppressed_note(suppressed), extra=extra)


class NamespaceLabels:
    """Namespaces as metric labels: short, printable, and bounded in number."""

    def __init__(self) -> None:
        self._by_namespace = {DEFAULT_NAMESPACE: DEFAULT_NAMESPACE}
        self._lock = Lock()

    def label(self, namespace: str) -> str:
        """Return the label of a namespace."""
        return self._by_namespace.get(namespace) or self._add_label(namespace)

    def reserve(self, namespace: str) -> None:
        """Add a label for a namespace, even beyond the bounds."""
        with self._lock:
            self._by_namespace[namespace] = _namespace_label(namespace)

    def _add_label(self, namespace: str) -> str:
        if len(namespace) > NAMESPACE_CHARS_MAX:
            return OTHER
        with self._lock:
            if len(self._by_namespace) >= NAMESPACES_MAX:
                return OTHER
            return self._by_namespace.setdefault(namespace, _namespace_label(namespace))


class LogThrottle:
    """Allows one log line per second and subject, and counts the suppressed ones.

    It remembers 10,000 subjects. When there are more it forgets all of them, so a line may then appear
    sooner.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._subjects: dict[tuple[str, ...], tuple[int, int]] = {}

    def suppressed_count(self, *subject: str) -> int | None:
        """Return how many lines were suppressed since the last, or ``None`` to suppress this one too."""
        now_ns = self._clock.now_ns()
        with self._lock:
            last_ns, suppressed = self._subjects.get(subject, (now_ns - LOG_INTERVAL_NS, 0))
            if now_ns - last_ns < LOG_INTERVAL_NS:
                self._subjects[subject] = last_ns, suppressed + 1
                return None
            if len(self._subjects) >= _SUBJECTS_MAX:
                self._subjects.clear()
            self._subjects[subject] = now_ns, 0
            return suppressed


def key_namespace(key: Key) -> str:
    """Return the namespace of a key; for a plain ``str`` the text before its first colon, as written."""
    if isinstance(key, LimitKey):
        return key.namespace
    if isinstance(key, str):
        end = key.find(":")
        if end > 0:
            return key[:end]
    return DEFAULT_NAMESPACE


def _namespace_label(namespace: str) -> str:
    shown = namespace if namespace.isprintable() else printable_text(namespace)
    return shown[:NAMESPACE_CHARS_MAX] or DEFAULT_NAMESPACE


def _boolean_label(value: bool) -> str:
    return "true" if value else "false"


def _error_text(error: Exception) -> str:
    return ascii(f"{type(error).__name__}: {error}")[1:-1][:_ERROR_CHARS_MAX]


def _suppressed_note(suppressed: int) -> str:
    return f" ({suppressed} more since the last line)" if suppressed else ""


def _logger() -> logging.Logger:
    import logging  # noqa: PLC0415 - costs 6 ms, and most programs never log here

    return logging.getLogger("comporta.limits")
