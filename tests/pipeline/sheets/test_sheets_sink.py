"""Rows in a sheet: each at its address, once, whatever becomes of acknowledgements, grids and titles."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import date
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.sheets.conftest import MakesSink, hurried
from tests.processes.fleet import Worker, started, together

from comporta import Retry
from comporta.database.base import Statement
from comporta.database.urls import open_database
from comporta.errors import (
    DatabaseSchemaError,
    SinkBusyError,
    SinkColumnError,
    SinkDeniedError,
    SinkError,
    SinkFullError,
    SinkMissingError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
from comporta.pipeline.sinks.addresses import _FOUND, Addresses
from comporta.pipeline.sinks.tabs import column_name
from comporta.testing import ManualClock, PostgresServer, SheetsServer

WRITES = "values:batchUpdate"
GROWTH = ":batchUpdate"
NUMBERS = Statement("SELECT row_number FROM sheet_rows ORDER BY row_number")


def rows(*names: str, value: Any = 1) -> list[dict[str, Any]]:
    return [{"id": name, "value": value} for name in names]


def many(count: int) -> list[dict[str, Any]]:
    return rows(*(f"row-{number}" for number in range(count)))


def keys_in(server: SheetsServer, spreadsheet: str) -> list[Any]:
    """Return the first column below the header."""
    return [line[0] if line else "" for line in server.rows(spreadsheet)[1:]]


def test_write__new_rows__come_below_the_header_in_order(
    account: GoogleAccount, server: SheetsServer, spreadsheet: str, empty_database_url: str
) -> None:
    sink = SheetsSink(spreadsheet, account, database=empty_database_url, migrate=True)
    sink.open()
    sink.write(rows("b", "a"))
    sink.write([])
    sink.write(rows("c", "a", "d", value=2))
    sink.close()
    expected: list[list[Any]] = [["id", "value"], ["b", 1], ["a", 2], ["c", 2], ["d", 2]]
    assert server.rows(spreadsheet) == expected


def test_write__one_batch__is_one_request(make: MakesSink, server: SheetsServer) -> None:
    sink = make()
    server.requests.clear()
    sink.write(many(50))
    sink.write([*many(10)[::3], *rows("new")])
    assert len(server.requests) == 2


def test_write__more_than_fits_a_request__is_several(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    make().write(many(5001))
    assert sum(WRITES in request for request in server.requests) == 2
    assert keys_in(server, spreadsheet) == [f"row-{number}" for number in range(5001)]


def test_write__key_twice_in_a_batch__the_last_one_counts(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    make().write([*rows("a"), *rows("b"), *rows("a", value=3)])
    assert server.rows(spreadsheet)[1:] == [["a", 3], ["b", 1]]


def test_write__values__are_kept_as_they_are_and_no_text_is_a_formula(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    texts = ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "=1"]
    make(columns=["id", "value"]).write([{"id": n, "value": text} for n, text in enumerate(texts)])
    assert [line[1] for line in server.rows(spreadsheet)[1:]] == texts
    assert server.formulas(spreadsheet) == []
    make().write([{"id": n, "value": v} for n, v in enumerate([1.5, True, date(2026, 2, 18), None, 10**20])])
    kept = [line[1:] for line in server.rows(spreadsheet)[1:6]]
    assert kept == [[1.5], [True], ["2026-02-18"], [], ["1" + "0" * 20]]


@pytest.mark.parametrize("reset", [False, True])
def test_write__acknowledgement_lost_and_tried_again__each_row_is_there_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str, retry: Retry, *, reset: bool
) -> None:
    sink = make()
    sink.write(rows("before"))
    server.lose(4, to=WRITES, reset=reset)
    with pytest.raises(SinkUnavailableError, match="whether it took effect is unknown"):
        sink.write(many(50))
    retry.sync.call(sink.write, many(50))
    sink.write(rows("after"))
    assert keys_in(server, spreadsheet) == ["before", *(row["id"] for row in many(50)), "after"]


@pytest.mark.parametrize("done", [False, True])
def test_write__server_hangs__ends_with_the_time_out_and_can_be_tried_again(
    make: MakesSink, server: SheetsServer, account: GoogleAccount, spreadsheet: str, *, done: bool
) -> None:
    sink = make()
    server.hang(1, done=done, to=WRITES)
    with hurried(account), pytest.raises(SinkUnavailableError, match="no answer in time"):
        sink.write(many(50))
    server.heal()
    sink.write(many(50))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(50)]


def test_write__quota_used_up__waits_as_long_as_it_is_told(
    make: MakesSink, server: SheetsServer, spreadsheet: str, retry: Retry, clock: ManualClock
) -> None:
    sink = make()
    before = clock.now_ns()
    server.fail(429, 2, retry_after="30", to=WRITES)
    retry.sync.call(sink.write, rows("a"))
    assert (clock.now_ns() - before) / 1e9 == 60
    assert keys_in(server, spreadsheet) == ["a"]


@pytest.mark.parametrize(
    ("status", "retry_after", "kind", "wait"),
    [
        (429, None, SinkBusyError, 15.0),
        (429, "7", SinkBusyError, 7.0),
        (503, "3", SinkBusyError, 3.0),
        (500, None, SinkUnavailableError, None),
        (503, None, SinkUnavailableError, None),
        (408, None, SinkUnavailableError, None),
        (403, None, SinkDeniedError, None),
        (404, None, SinkMissingError, None),
        (400, None, SinkError, None),
    ],
)
def test_write__refused__is_an_error_with_a_name_and_nothing_is_lost(
    make: MakesSink,
    server: SheetsServer,
    spreadsheet: str,
    *,
    status: int,
    retry_after: str | None,
    kind: type[SinkError],
    wait: float | None,
) -> None:
    sink = make()
    server.fail(status, 1, retry_after=retry_after, to=WRITES)
    with pytest.raises(SinkError, match=f"spreadsheet {spreadsheet}, sheet 'Sheet1': {status} ") as caught:
        sink.write(rows("a"))
    assert type(caught.value) is kind
    assert getattr(caught.value, "retry_after", None) == wait
    sink.write(rows("a"))
    assert keys_in(server, spreadsheet) == ["a"]


def test_write__below_the_end_of_the_grid__grows_it_first(
    account: GoogleAccount, server: SheetsServer, database: str
) -> None:
    spreadsheet = server.create(rows=3, columns=1)
    sink = SheetsSink(spreadsheet, account, database=database)
    sink.open()
    server.lose(2, to=f"{spreadsheet}{GROWTH}")
    with pytest.raises(SinkUnavailableError):
        sink.write(many(5))
    sink.write(many(5))
    sink.write(many(2500))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(2500)]
    assert server.grid(spreadsheet).tab(None).rows >= 2501
    sink.close()


def test_write__grid_cannot_grow__says_that_it_is_full(
    account: GoogleAccount, server: SheetsServer, database: str
) -> None:
    spreadsheet = server.create(rows=2, columns=4_999_999)
    sink = SheetsSink(spreadsheet, account, database=database, columns=["id", "value"])
    with pytest.raises(ValueError, match="columns must be 1 to 1000"):
        SheetsSink(spreadsheet, account, database=database, columns=list(map(str, range(1001))))
    sink.open()
    sink.write(rows("a"))
    with pytest.raises(SinkFullError, match="above the limit of"):
        sink.write(rows("b"))
    sink.close()


def test_write__somebody_removed_rows_or_renamed_the_sheet__goes_on(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    sink.write(many(5))
    tab = server.grid(spreadsheet).tab(None)
    tab.rows = 4
    sink.write(many(7))
    assert tab.rows >= 8
    tab.title = "It's renamed"
    sink.write(many(8))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(8)]


def test_write__somebody_removed_the_sheet__says_so(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make(sheet="Mine")
    server.grid(spreadsheet).tabs.pop()
    with pytest.raises(SinkMissingError, match="sheet 'Mine': somebody removed the sheet"):
        sink.write(rows("a"))


def test_open__sheet_by_title__is_made_once(make: MakesSink, server: SheetsServer, spreadsheet: str) -> None:
    server.lose(1, to=GROWTH)  # the client itself asks again, and is told that it is there
    sinks = [make(sheet="Results"), make(sheet="Results")]
    for number, sink in enumerate(sinks):
        sink.write(rows("a", f"by {number}"))
    assert [tab.title for tab in server.grid(spreadsheet).tabs] == ["Sheet1", "Results"]
    assert [line[0] for line in server.rows(spreadsheet, "Results")] == ["id", "a", "by 0", "by 1"]
    assert server.rows(spreadsheet) == []


@pytest.mark.parametrize(("status", "kind"), [(400, SinkError), (503, SinkUnavailableError)])
def test_open__sheet_cannot_be_made__is_the_services_error(
    make: MakesSink, server: SheetsServer, status: int, kind: type[SinkError]
) -> None:
    server.fail(status, 1, to=GROWTH)
    with pytest.raises(kind, match=f"sheet 'Results': {status} on purpose"):
        make(sheet="Results")


def test_open__no_sheet_with_cells__says_so(make: MakesSink, server: SheetsServer, spreadsheet: str) -> None:
    server.grid(spreadsheet).tabs.clear()
    with pytest.raises(SinkMissingError, match=f"spreadsheet {spreadsheet}: it has no sheet with cells"):
        make()


@pytest.mark.parametrize(("change", "kind"), [("forbid", SinkDeniedError), ("remove", SinkMissingError)])
def test_open__spreadsheet_not_ours_or_not_there__is_an_error_with_a_name(
    make: MakesSink, server: SheetsServer, spreadsheet: str, change: str, kind: type[SinkError]
) -> None:
    getattr(server, change)(spreadsheet)
    with pytest.raises(kind, match=f"spreadsheet {spreadsheet}: 40[34] "):
        make()
    if change == "forbid":
        server._service.forbidden.clear()


def test_open__rows_of_somebody_else__are_left_alone(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.grid(spreadsheet).write([{"range": "A1:B3", "values": [["x"], [], ["mine"]]}], entered=True)
    with pytest.raises(SinkError, match="holds rows that were not written through this database"):
        make()
    assert server.rows(spreadsheet) == [["x"], [], ["mine"]]


def test_open__header_by_hand__is_taken_over(make: MakesSink, server: SheetsServer, spreadsheet: str) -> None:
    server.grid(spreadsheet).write([{"range": "A1:B1", "values": [["value", "id"]]}], entered=True)
    make().write(rows("a"))
    assert server.rows(spreadsheet) == [["value", "id"], [1, "a"]]


def test_open__header_by_hand_without_the_key__is_refused(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.grid(spreadsheet).write([{"range": "A1", "values": [["value"]]}], entered=True)
    with pytest.raises(SinkError, match="its header cannot be used: columns must hold the key 'id'"):
        make()


def test_write__first_row_cannot_be_a_header__names_the_row(make: MakesSink) -> None:
    with pytest.raises(SinkColumnError, match="columns must be texts, each once") as caught:
        make().write([{"id": 1, "": 2}])
    assert caught.value.index == 0


def test_open__other_columns_than_the_header__are_refused(make: MakesSink) -> None:
    make(columns=["id", "value", "more"]).write(rows("a"))
    make(columns=["more", "id"]).write([{"id": "b", "more": 1}])
    with pytest.raises(SinkError, match="no column other; the header is id, value, more"):
        make(columns=["id", "other"])


def test_write__sink_not_open__says_so(account: GoogleAccount, spreadsheet: str, database: str) -> None:
    with pytest.raises(SinkError, match=f"spreadsheet {spreadsheet}: it is not open"):
        SheetsSink(spreadsheet, account, database=database).write(rows("a"))


def test_write__unknown_column__names_it_and_the_row(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    with pytest.raises(SinkColumnError, match="no column extra; the header is id, value") as caught:
        sink.write([*rows("a"), {"id": "b", "extra": 1}])
    assert caught.value.index == 1
    assert server.rows(spreadsheet) == []


def test_write__another_process_set_other_columns_first__they_count(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    late, wrong = make(), make(columns=["id", "nothing"])
    make(columns=["value", "id"]).write(rows("a"))
    late.write(rows("b"))
    with pytest.raises(SinkColumnError, match="no column nothing"):
        wrong.write([{"id": "c", "nothing": 1}])
    assert server.rows(spreadsheet) == [["value", "id"], [1, "a"], [1, "b"]]


def test_write__cell_too_long__is_refused_before_anything_is_written(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    with pytest.raises(SinkRowError, match="value must be at most 50000 characters, got 50001") as caught:
        sink.write([*rows("a"), *rows("b", value="x" * 50_001)])
    assert caught.value.index == 1
    sink.write(rows("b", value="x" * 50_000))
    assert keys_in(server, spreadsheet) == ["b"]


@pytest.mark.parametrize("key", [None, "", True, 1.5, "x" * 501, "a\0b", "\ud800"])
def test_write__key_that_cannot_be_kept__names_the_row(make: MakesSink, key: Any) -> None:
    with pytest.raises(SinkRowError, match="id must be a whole number or a text of 1 to 500") as caught:
        make().write([*rows("a"), {"id": key}])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "columns must be 1 to 1000, got 0"),
        (["id", "id"], "columns must be texts, each once, got 'id', 'id'"),
        (["id", ""], "columns must be texts, each once"),
        (["x"], "columns must hold the key 'id', got x"),
    ],
)
def test_sink__wrong_columns__are_refused(account: GoogleAccount, columns: Sequence[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SheetsSink("s", account, columns=columns)


def test_sink__no_spreadsheet__is_refused(account: GoogleAccount) -> None:
    with pytest.raises(ValueError, match="spreadsheet_id must not be empty"):
        SheetsSink("", account)


def test_open__tables_missing__says_what_to_run(
    account: GoogleAccount, spreadsheet: str, database: str
) -> None:
    opened = open_database(database)
    sink = SheetsSink(spreadsheet, account, database=opened, migrate=False)
    with pytest.raises(DatabaseSchemaError, match=r"migration 5 \(the rows of spreadsheets\) was not run"):
        sink.open()
    sink.close()
    opened.close()


def test_addresses__table_nobody_has_counted__are_looked_up_by_the_key(
    postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    """As a join, a batch of 10,000 keys took more than a minute during a first load."""
    postgres.command("CREATE SCHEMA sheet_plans")
    request.addfinalizer(lambda: postgres.command("DROP SCHEMA sheet_plans CASCADE"))
    database = open_database(postgres.schema_url("sheet_plans"))
    addresses = Addresses(database)
    addresses.prepare(may_migrate=True)
    assert addresses.assign("s", "0", ["id"], ["a", "b"]).rows == {"a": 2, "b": 3}
    told = {"spreadsheet_id": "s", "sheet": "0", "keys": '["b", "c"]'}
    plan = "".join(line for (line,) in database.read(Statement(f"EXPLAIN {_FOUND}"), told))
    assert "sheet_rows_pkey" in plan
    assert "row_key = " in plan.partition("Index Cond: ")[2]
    database.close()


def test_forget__spreadsheet__knows_no_address_of_it(make: MakesSink, server: SheetsServer) -> None:
    sink = make()
    sink.write(rows("a", "b"))
    sink.forget()
    assert sink._addresses.columns(sink.spreadsheet_id, "0") is None
    with pytest.raises(SinkError, match="were not written through this database"):
        make()


@pytest.mark.parametrize(("number", "name"), [(1, "A"), (26, "Z"), (27, "AA"), (702, "ZZ"), (703, "AAA")])
def test_column_name__number__is_its_letters(number: int, name: str) -> None:
    assert column_name(number) == name


def test_write__two_processes_the_same_rows_in_trouble__each_row_is_there_once(
    server: SheetsServer, spreadsheet: str, empty_database_url: str
) -> None:
    sign = "&" if "?" in empty_database_url else "?"
    server.fail(429, 2, retry_after="1", to=WRITES)
    server.lose(3, to=WRITES)
    server.lose(2, to=WRITES, reset=True)
    server.fail(503, 2, to=WRITES)
    told = {
        "endpoint": server.url,
        "spreadsheet": spreadsheet,
        "database": f"{empty_database_url}{sign}timeout=30",
    }
    with started(2, "sheet_writes", keys=600, batch=40, **told) as workers:
        first, second = together(workers)
    assert first == second == sorted(keys_in(server, spreadsheet))


def test_write__process_killed_in_the_middle__another_goes_on_and_each_row_is_there_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str, database: str
) -> None:
    told = {"endpoint": server.url, "spreadsheet": spreadsheet, "database": database}
    with Worker("sheet_writes", number=0, keys=200, batch=40, **told) as worker:
        worker.ready()
        server.requests.clear()
        server.lose(1, to=WRITES)
        server.hang(1, done=True, to=WRITES)
        worker.go()
        while len(server.requests) < 2:
            time.sleep(0.01)
    server.heal()
    make().write(many(200))
    assert sorted(keys_in(server, spreadsheet)) == sorted(row["id"] for row in many(200))


def test_write__many_threads_of_one_sink__each_row_is_there_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    failed: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for batch in range(start, start + 4):
                sink.write(many(500)[batch * 20 : batch * 20 + 40])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 2, 4, 6, 8, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert sorted(keys_in(server, spreadsheet)) == sorted(row["id"] for row in many(500)[:300])


Step = tuple[int, frozenset[str], str]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.frozensets(st.sampled_from("abcdefgh"), min_size=1),
        st.sampled_from(["", "", "lose", "reset", "fail", "grow"]),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_write__any_order_of_writers_and_faults__each_row_is_there_once_with_its_last_value(
    account: GoogleAccount, server: SheetsServer, database: str, steps: list[Step]
) -> None:
    server.heal()
    spreadsheet = server.create(rows=2, columns=2)
    sinks = [SheetsSink(spreadsheet, account, database=database) for _ in range(2)]
    for sink in sinks:
        sink.open()
    expected: dict[str, int] = {}
    for value, (writer, names, fault) in enumerate(steps):
        if fault in ("lose", "reset"):
            server.lose(2, to=WRITES, reset=fault == "reset")
        elif fault == "grow":
            server.lose(2, to=f"{spreadsheet}{GROWTH}")
        elif fault:
            server.fail(500, 1, to=WRITES)
        for _ in range(10):
            try:
                sinks[writer].write(rows(*sorted(names), value=value))
            except SinkUnavailableError:
                continue
            break
        expected.update(dict.fromkeys(names, value))
        server.heal()
    for sink in sinks:
        sink.close()
    found = server.rows(spreadsheet)[1:]
    assert len(found) == len(expected)
    assert {line[0]: line[1] for line in found} == expected


def test_write__two_sinks_take_turns__no_address_is_given_twice(
    make: MakesSink, server: SheetsServer
) -> None:
    sinks = [make(), make()]
    for turn, (number, sink) in product(range(5), enumerate(sinks)):
        sink.write(rows(f"{turn}-{number}", f"{turn}-both"))
    numbers = sinks[0]._addresses.database.read(NUMBERS, {})
    assert [number for (number,) in numbers] == list(range(2, 2 + 15))
