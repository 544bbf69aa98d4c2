"""Runs a small fleet for the browser: portals that can fail, workers that share a store, and clients."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx2
from tests.service.harness import CLIENT, OUR_VARIABLES, PATIENCE_SECONDS, ROOT, TOKEN

from comporta.database.urls import open_database
from comporta.service.batch.whitelist import Whitelist
from comporta.stores.shared.directory import directory_path
from comporta.testing import ProcurementServer

DASHBOARD_TOKEN = "a-dashboard-token-for-tests"  # noqa: S105 - of tests only
COOLDOWN_SECONDS = 2
OPERATOR = {"authorization": f"Bearer {TOKEN}"}
CLIENTS = 3
UFS = ("SP", "RJ", "MG", "BA", "PR", "RS", "PE", "CE")

_UPSTREAM = """
[upstreams.{name}]
limit = "{limit}"
max_wait = 2
timeout = 2

[upstreams.{name}.breaker]
threshold = 4
cooldown_seconds = {cooldown}
probes = 1

[upstreams.{name}.retry]
retries = 1
base = 0.05
"""

_SERVICE = """
state = "{state}"

[service]
database = "{database}"
sheets_folder = "{folder}/sheets"
allow_private_addresses = true
client_limit = false
close_seconds = 1

[service.search]
fresh = 1
stale = 3600
timeout = 8

[service.batch]
processor = "tests.service.batch.rig:greet"
sheets = "files"

[service.addresses]
pncp = "{portals.pncp.url}"
pcp = "{portals.pcp.url}"
"""


class WorkerProcess:
    """One worker process; after a restart it has the same address."""

    def __init__(self, environ: dict[str, str], control: str, errors: Path) -> None:
        self._environ = environ
        self._control = control
        self._errors = errors
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; :meth:`wait_ready` waits until it serves."""
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "tests.browser.worker", port, self._control]
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environ, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def wait_ready(self) -> None:
        """Wait until it serves."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("Serving at "), self._errors.read_text()
        self.address = line.removeprefix("Serving at ").strip()
        assert CLIENT.get(f"{self.address}/readyz").status_code == 200, self._errors.read_text()

    def end(self, sent: int = signal.SIGTERM) -> None:
        """End it; kill it if it does not end in time."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(sent)
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()


class Fleet:
    """The portals, the workers, and client load."""

    def __init__(
        self, portals: ProcurementServer, workers: list[WorkerProcess], folder: Path, state: str
    ) -> None:
        self.state = state
        self.portals = portals
        self.workers = workers
        self.folder = folder

    @property
    def address(self) -> str:
        """The address of the first worker."""
        return self.workers[0].address

    def document(self) -> dict[str, Any]:
        """Return the dashboard document."""
        document: dict[str, Any] = CLIENT.get(f"{self.address}/v1/dashboard").json()
        return document

    def count_actions(self, action: str) -> int:
        """Return how often the audit log has an action as done."""
        log = CLIENT.get(f"{self.address}/v1/admin/audit?limit=1000", headers=OPERATOR).json()
        return sum(each["action"] == action and each["outcome"] == "done" for each in log["actions"])

    def degrade_key(self) -> None:
        """Leave one key of pcp in backoff: the portal fails once and recovers."""
        cleared = CLIENT.delete(f"{self.address}/v1/admin/cache/keys?confirm=everything", headers=OPERATOR)
        assert cleared.status_code == 200, cleared.text
        self.portals.pcp.set(mode="dead")
        query = {"date_from": "2025-05-05", "date_to": "2025-05-05", "ufs": "SP"}
        CLIENT.get(f"{self.address}/v1/search", params=query)
        self.portals.pcp.set(mode="ok")

    def add_failing_backfill(self, job_id: str, accounts: int) -> Path:
        """Add a job whose backfill fails; return the directory to remove so that it can continue."""
        address = f"{self.address}/ultra-batch"
        sheet_id = hashlib.sha256(f"batch-{job_id}".encode()).hexdigest()[:24]
        blocking = self.folder / "sheets" / f".Rows-{sheet_id}.csv.lock"
        blocking.mkdir(parents=True)  # where the lock file has to be
        with closing(open_database(_database(self.folder))) as database:
            Whitelist(database).set_user_digital("ana", digital=True)
        job = {"job_id": job_id, "user_id": "ana", "accounts": [str(number) for number in range(accounts)]}
        assert CLIENT.post(f"{address}/jobs", json=job).status_code == 200  # the response ends with the job
        sheet = {"job_id": job_id, "user_id": "ana", "custom_name": "Rows"}
        reply = CLIENT.post(f"{address}/configure-sheets", json=sheet)
        assert reply.status_code == 200, reply.text
        return blocking

    def heal(self) -> None:
        """Restore the healthy state: portals answer, nothing is forced, circuits are closed."""
        for portal in self.portals.portals.values():
            portal.set(mode="ok")
        for name in self.portals.portals:
            reply = CLIENT.post(f"{self.address}/v1/admin/breakers/{name}/reset", headers=OPERATOR)
            assert reply.status_code == 200, reply.text

    @contextmanager
    def searching(self, queries: int = 2400) -> Iterator[None]:
        """Run clients that search, cycling through ``queries`` different queries."""
        stop = threading.Event()
        users = [
            threading.Thread(target=self._search, args=(stop, queries), daemon=True) for _ in range(CLIENTS)
        ]
        for user in users:
            user.start()
        try:
            yield
        finally:
            stop.set()
            for user in users:
                user.join(PATIENCE_SECONDS)

    def _search(self, stop: threading.Event, queries: int) -> None:
        with httpx2.Client(timeout=10, limits=httpx2.Limits(max_keepalive_connections=0)) as client:
            while not stop.wait(0.1):
                number = next(_numbers) % queries
                day = (date(2026, 1, 1) + timedelta(days=number // len(UFS))).isoformat()
                query = {"date_from": day, "date_to": day, "ufs": UFS[number % len(UFS)]}
                with suppress(httpx2.HTTPError):  # a test may have killed the worker
                    client.get(f"{self.workers[number % len(self.workers)].address}/v1/search", params=query)


_numbers = itertools.count()


@contextmanager
def start_fleet(count: int, folder: Path, **variables: str) -> Iterator[Fleet]:
    """Start workers on a new store; end them and remove the store afterwards."""
    state = f"test-{uuid.uuid4().hex}"
    with ExitStack() as stack:
        portals = stack.enter_context(ProcurementServer(seed=7))
        stack.callback(shutil.rmtree, directory_path(state), ignore_errors=True)
        file = folder / "comporta.toml"
        file.write_text(_config_text(f"shared://{state}", folder, portals))
        environ = {name: value for name, value in os.environ.items() if not name.startswith(OUR_VARIABLES)}
        environ |= {"COMPORTA_CONFIG": str(file), "COMPORTA_SERVICE_ADMIN_TOKEN": TOKEN, **variables}
        workers = [
            WorkerProcess(environ, portals.url, folder / f"errors-{number}") for number in range(count)
        ]
        for worker in workers:
            stack.callback(worker.end)
            worker.start()
        for worker in workers:
            worker.wait_ready()
        yield Fleet(portals, workers, folder, f"shared://{state}")


def _database(folder: Path) -> str:
    return f"sqlite:///{folder}/service.db?timeout=30"


def _config_text(state: str, folder: Path, portals: ProcurementServer) -> str:
    limits = {"pncp": "10/s", "pcp": "5/s"}
    upstreams = [
        _UPSTREAM.format(name=name, limit=limit, cooldown=COOLDOWN_SECONDS) for name, limit in limits.items()
    ]
    service = _SERVICE.format(state=state, database=_database(folder), folder=folder, portals=portals)
    return service.lstrip() + "".join(upstreams)
