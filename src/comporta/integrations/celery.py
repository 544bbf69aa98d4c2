"""Celery tasks that are sent again, at the right time, when an upstream refuses a call.

::

    app = Celery("crawler", broker="redis://localhost:6379/0", task_cls=RefusalRetryTask)

    @app.task
    def fetch(page: int) -> None:
        portal.sync.call(download, page)  # raises CircuitOpenError or LimitReachedError
"""

from __future__ import annotations

from typing import Any, Final

from comporta.errors import RefusedError
from comporta.jitter import uniform
from comporta.limits.leases.scheduler import return_all
from comporta.stores.failover import heartbeat

try:
    from celery import Task
    from celery.exceptions import Retry
    from celery.signals import worker_process_shutdown
except ImportError as error:
    raise ImportError(
        "comporta.integrations.celery needs the package celery: pip install 'comporta[celery]'"
    ) from error

__all__ = ["RefusalRetryTask", "refusal_countdown"]

COUNTDOWN_SECONDS_MAX: Final = 900.0
"""The longest countdown. Redis and SQS brokers redeliver a task that waits longer than their visibility
timeout (by default an hour and half an hour), so a longer wait is split into several."""

SPREAD_SECONDS_MAX: Final = 60.0
"""The most by which a countdown is later than ``retry_after``, so that tasks do not all run again at once."""

_REFUSALS_HEADER = "comporta_refusals"
_SPREAD_DOUBLINGS_MAX = 6


class RefusalRetryTask(Task):  # type: ignore[misc]  # celery has no annotations
    """A task that is sent again when it raises a :class:`comporta.RefusedError`.

    It runs again when, according to the refusal, a retry may succeed. A refusal is not a failure: it does not
    count towards ``max_retries``, and ``autoretry_for`` does not apply to it. After ``refusals_max`` refusals
    in total the task fails with the error; ``None`` sets no limit.
    """

    abstract = True
    refusals_max: int | None = 100
    dont_autoretry_for = (RefusedError,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; called by the worker."""
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        try:
            return self.run(*args, **kwargs)
        except RefusedError as error:
            retry = self._retry(error)
            if retry is None:
                raise
            raise retry from error

    def _retry(self, error: RefusedError) -> Retry | None:
        """Send the task again; ``None`` if it was refused too often."""
        request = self.request
        refusals = int((request.headers or {}).get(_REFUSALS_HEADER, 0))
        if self.refusals_max is not None and refusals >= self.refusals_max:
            return None
        countdown = refusal_countdown(error, refusals)
        signature = self.signature_from_request(request, countdown=countdown)
        headers = signature.options.get("headers") or {}
        signature.options["headers"] = {**headers, _REFUSALS_HEADER: refusals + 1}
        if not request.is_eager:
            signature.apply_async()
        return Retry(exc=error, when=countdown, is_eager=request.is_eager, sig=signature)


def refusal_countdown(error: RefusedError, refusals: int = 0) -> float:
    """Return in how many seconds to retry after a refusal, for ``self.retry(countdown=...)``.

    It is never before ``error.retry_after``, unless that is more than 900 s away. A random time is added, so
    that tasks that were refused together do not run again together: up to 1 s after the first refusal,
    doubled for each of the ``refusals`` earlier ones, at most 60 s.
    """
    spread = min(SPREAD_SECONDS_MAX, 2.0 ** min(refusals, _SPREAD_DOUBLINGS_MAX))
    return min(COUNTDOWN_SECONDS_MAX, max(0.0, error.retry_after) + uniform(0, spread))


@worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _leave_fleet(**_: object) -> None:
    """Return leases and remove the worker: a prefork process ends without Python's exit handlers."""
    return_all()
    heartbeat.stop_all()
