"""A Celery application whose tasks call a limited upstream, for a real worker.

``COMPORTA_TEST_BROKER`` is the URL of the broker, ``COMPORTA_TEST_STATE`` that of the store.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task

from comporta import CircuitOpenError, LimitConfig, TokenBucketLimiter, Upstream
from comporta.integrations.celery import RefusalRetryTask

BROKER = os.environ.get("COMPORTA_TEST_BROKER", "memory://")
STATE = os.environ.get("COMPORTA_TEST_STATE", "memory://")

app = Celery("crawler", broker=BROKER, backend=BROKER, task_cls=RefusalRetryTask)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"polling_interval": 0.05},
    worker_send_task_events=False,
    task_default_queue=os.environ.get("COMPORTA_TEST_QUEUE", "celery"),
)

portal = Upstream("portal", limit="2/s burst 2", state=STATE, max_wait=0)
leased = TokenBucketLimiter(LimitConfig(0.001, 1000, lease=10.0), STATE, "leased")
TokenBucketLimiter("5/s", STATE, "warm").sync.acquire()  # the worker forks after this


@app.task(bind=True)  # type: ignore[untyped-decorator]
def fetch(self: Task, page: int) -> dict[str, Any]:
    """Call the upstream; return the page and how often the task was refused and retried."""
    portal.sync.call(lambda: None)
    leased.sync.acquire()
    headers = self.request.headers or {}
    return {"page": page, "refusals": headers.get("comporta_refusals", 0), "retries": self.request.retries}


@app.task(bind=True, refusals_max=2, autoretry_for=(Exception,), max_retries=5)  # type: ignore[untyped-decorator]
def refuse(self: Task, retry_after: float) -> None:
    """Be refused every time."""
    reason = f"refusal {(self.request.headers or {}).get('comporta_refusals', 0)}"
    raise CircuitOpenError("portal", reason, None, retry_after)


@app.task(bind=True, autoretry_for=(LookupError,), default_retry_delay=0, max_retries=1)  # type: ignore[untyped-decorator]
def fail(self: Task) -> None:
    """Fail every time, for another reason than a refusal."""
    raise LookupError(f"retry {self.request.retries}")
