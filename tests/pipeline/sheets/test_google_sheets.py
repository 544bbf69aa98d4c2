"""The Google Sheets sink: each row at its place, once, despite lost responses and changes of the sheet."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pipeline.sheets.conftest import MakesSink, short_timeout
from tests.processes.fleet import Worker, run_together, start_workers
from tests.support import wait_until

from comporta import Retry
from comporta.database.base import Statement
from comporta.database.urls import open_database
from comporta.errors import (
    DatabaseSchemaError,
    SinkAuthError,
    SinkBusyError,
    SinkColumnError,
    SinkError,
    SinkFullError,
    SinkNotFoundError,
    SinkRowError,
    SinkUnavailableError,
)
from comporta.pipeline.sinks import GoogleAccount, SheetsSink
from comporta.pipeline.sinks.sheet_rows import _ROWS_OF_KEYS, SheetRows
from comporta.pipeline.sinks.sheets_client import column_name
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


def test_write__new_rows__are_below_the_header_in_order(
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


def test_write__more_rows_than_a_request_holds__are_several_requests(
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


def test_write__values__are_unchanged_and_no_text_is_a_formula(
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
def test_write__response_lost_and_retried__each_row_is_there_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str, retry: Retry, *, reset: bool
) -> None:
    sink = make()
    sink.write(rows("before"))
    server.lose_responses(4, matching=WRITES, reset=reset)
    with pytest.raises(SinkUnavailableError, match="the request may have taken effect"):
        sink.write(many(50))
    retry.sync.call(sink.write, many(50))
    sink.write(rows("after"))
    assert keys_in(server, spreadsheet) == ["before", *(row["id"] for row in many(50)), "after"]


@pytest.mark.parametrize("done", [False, True])
def test_write__server_hangs__times_out_and_can_be_retried(
    make: MakesSink, server: SheetsServer, account: GoogleAccount, spreadsheet: str, *, done: bool
) -> None:
    sink = make()
    server.hang(1, execute=done, matching=WRITES)
    with short_timeout(account), pytest.raises(SinkUnavailableError, match="no response in time"):
        sink.write(many(50))
    server.heal()
    sink.write(many(50))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(50)]


def test_write__quota_exhausted__carries_retry_after(
    make: MakesSink, server: SheetsServer, spreadsheet: str, retry: Retry, clock: ManualClock
) -> None:
    sink = make()
    before = clock.now_ns()
    server.fail(429, 2, retry_after="30", matching=WRITES)
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
        (403, None, SinkAuthError, None),
        (404, None, SinkNotFoundError, None),
        (400, None, SinkError, None),
    ],
)
def test_write__refused__is_a_sink_error_and_nothing_is_lost(
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
    server.fail(status, 1, retry_after=retry_after, matching=WRITES)
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
    server.lose_responses(2, matching=f"{spreadsheet}{GROWTH}")
    with pytest.raises(SinkUnavailableError):
        sink.write(many(5))
    sink.write(many(5))
    sink.write(many(2500))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(2500)]
    assert server.spreadsheet(spreadsheet).sheet(None).rows >= 2501
    sink.close()


def test_write__grid_cannot_grow__is_a_full_error(
    account: GoogleAccount, server: SheetsServer, database: str
) -> None:
    spreadsheet = server.create(rows=2, columns=4_999_999)
    sink = SheetsSink(spreadsheet, account, database=database, columns=["id", "value"])
    with pytest.raises(ValueError, match="columns must be 1 to 1000 names"):
        SheetsSink(spreadsheet, account, database=database, columns=list(map(str, range(1001))))
    sink.open()
    sink.write(rows("a"))
    with pytest.raises(SinkFullError, match="above the limit of"):
        sink.write(rows("b"))
    sink.close()


def test_write__sheet_renamed_or_rows_removed__continues(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    sink.write(many(5))
    tab = server.spreadsheet(spreadsheet).sheet(None)
    tab.rows = 4
    sink.write(many(7))
    assert tab.rows >= 8
    tab.title = "It's renamed"
    sink.write(many(8))
    assert keys_in(server, spreadsheet) == [row["id"] for row in many(8)]


def test_write__sheet_removed__is_a_not_found_error(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make(sheet="Mine")
    server.spreadsheet(spreadsheet).sheets.pop()
    with pytest.raises(SinkNotFoundError, match="sheet 'Mine': the sheet was removed"):
        sink.write(rows("a"))


def test_open__sheet_by_title__is_created_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.lose_responses(1, matching=GROWTH)  # the client sends it again, and the sheet exists by then
    sinks = [make(sheet="Results"), make(sheet="Results")]
    for number, sink in enumerate(sinks):
        sink.write(rows("a", f"by {number}"))
    assert [tab.title for tab in server.spreadsheet(spreadsheet).sheets] == ["Sheet1", "Results"]
    assert [line[0] for line in server.rows(spreadsheet, "Results")] == ["id", "a", "by 0", "by 1"]
    assert server.rows(spreadsheet) == []


@pytest.mark.parametrize(("status", "kind"), [(400, SinkError), (503, SinkUnavailableError)])
def test_open__sheet_cannot_be_created__raises_the_services_error(
    make: MakesSink, server: SheetsServer, status: int, kind: type[SinkError]
) -> None:
    server.fail(status, 1, matching=GROWTH)
    with pytest.raises(kind, match=f"sheet 'Results': {status} on purpose"):
        make(sheet="Results")


def test_open__no_sheet_with_cells__is_a_not_found_error(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.spreadsheet(spreadsheet).sheets.clear()
    with pytest.raises(SinkNotFoundError, match=f"{spreadsheet}: the spreadsheet has no sheet with cells"):
        make()


@pytest.mark.parametrize(("change", "kind"), [("forbid", SinkAuthError), ("remove", SinkNotFoundError)])
def test_open__spreadsheet_forbidden_or_missing__is_a_sink_error(
    make: MakesSink, server: SheetsServer, spreadsheet: str, change: str, kind: type[SinkError]
) -> None:
    getattr(server, change)(spreadsheet)
    with pytest.raises(kind, match=f"spreadsheet {spreadsheet}: 40[34] "):
        make()
    if change == "forbid":
        server._service.forbidden.clear()


def test_open__rows_from_elsewhere__are_refused(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.spreadsheet(spreadsheet).write(
        [{"range": "A1:B3", "values": [["x"], [], ["mine"]]}], parse_formulas=True
    )
    with pytest.raises(SinkError, match="holds rows that were not written through this database"):
        make()
    assert server.rows(spreadsheet) == [["x"], [], ["mine"]]


def test_open__header_set_by_hand__is_used(make: MakesSink, server: SheetsServer, spreadsheet: str) -> None:
    server.spreadsheet(spreadsheet).write(
        [{"range": "A1:B1", "values": [["value", "id"]]}], parse_formulas=True
    )
    make().write(rows("a"))
    assert server.rows(spreadsheet) == [["value", "id"], [1, "a"]]


def test_open__header_set_by_hand_without_the_key__is_refused(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    server.spreadsheet(spreadsheet).write([{"range": "A1", "values": [["value"]]}], parse_formulas=True)
    with pytest.raises(SinkError, match="the header cannot be used: columns must contain the key 'id'"):
        make()


def test_write__first_row_cannot_be_a_header__names_the_row(make: MakesSink) -> None:
    with pytest.raises(SinkColumnError, match="columns must be different strings") as caught:
        make().write([{"id": 1, "": 2}])
    assert caught.value.index == 0


def test_open__other_columns_than_the_header__are_refused(make: MakesSink) -> None:
    make(columns=["id", "value", "more"]).write(rows("a"))
    make(columns=["more", "id"]).write([{"id": "b", "more": 1}])
    with pytest.raises(SinkError, match="expected the columns other, got id, value, more"):
        make(columns=["id", "other"])


def test_write__not_open__is_a_sink_error(account: GoogleAccount, spreadsheet: str, database: str) -> None:
    with pytest.raises(SinkError, match=f"spreadsheet {spreadsheet}: the sheet is not open"):
        SheetsSink(spreadsheet, account, database=database).write(rows("a"))


def test_write__unknown_column__names_it_and_the_row(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    with pytest.raises(SinkColumnError, match="unknown columns extra; expected id, value") as caught:
        sink.write([*rows("a"), {"id": "b", "extra": 1}])
    assert caught.value.index == 1
    assert server.rows(spreadsheet) == []


def test_write__another_process_set_other_columns_first__they_are_used(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    late, wrong = make(), make(columns=["id", "nothing"])
    make(columns=["value", "id"]).write(rows("a"))
    late.write(rows("b"))
    with pytest.raises(SinkColumnError, match="unknown columns nothing"):
        wrong.write([{"id": "c", "nothing": 1}])
    assert server.rows(spreadsheet) == [["value", "id"], [1, "a"], [1, "b"]]


def test_write__cell_too_long__is_refused_before_anything_is_written(
    make: MakesSink, server: SheetsServer, spreadsheet: str
) -> None:
    sink = make()
    with pytest.raises(SinkRowError, match="value must have at most 50000 characters, got 50001") as caught:
        sink.write([*rows("a"), *rows("b", value="x" * 50_001)])
    assert caught.value.index == 1
    sink.write(rows("b", value="x" * 50_000))
    assert keys_in(server, spreadsheet) == ["b"]


@pytest.mark.parametrize("key", [None, "", True, 1.5, "x" * 501, "a\0b", "\ud800"])
def test_write__invalid_key__names_the_row(make: MakesSink, key: Any) -> None:
    with pytest.raises(SinkRowError, match="id must be an integer or a string of 1 to 500") as caught:
        make().write([*rows("a"), {"id": key}])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "columns must be 1 to 1000 names, got 0"),
        (["id", "id"], "columns must be different strings, got 'id', 'id'"),
        (["id", ""], "columns must be different strings"),
        (["x"], "columns must contain the key 'id', got x"),
    ],
)
def test_sink__wrong_columns__are_refused(
    account: GoogleAccount, columns: Sequence[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SheetsSink("s", account, columns=columns)


def test_sink__no_spreadsheet__is_refused(account: GoogleAccount) -> None:
    with pytest.raises(ValueError, match="spreadsheet_id must not be empty"):
        SheetsSink("", account)


def test_open__tables_missing__says_which_command_to_run(
    account: GoogleAccount, spreadsheet: str, database: str
) -> None:
    opened = open_database(database)
    sink = SheetsSink(spreadsheet, account, database=opened, migrate=False)
    with pytest.raises(DatabaseSchemaError, match=r"migration 50 \(the rows of spreadsheets\) was not run"):
        sink.open()
    sink.close()
    opened.close()


def test_sheet_rows__table_not_analyzed__is_searched_by_the_index(
    postgres: PostgresServer, request: pytest.FixtureRequest
) -> None:
    """As a join, a batch of 10,000 keys took more than a minute during a first load."""
    postgres.command("CREATE SCHEMA sheet_plans")
    request.addfinalizer(lambda: postgres.command("DROP SCHEMA sheet_plans CASCADE"))
    database = open_database(postgres.schema_url("sheet_plans"))
    addresses = SheetRows(database)
    addresses.prepare(may_migrate=True)
    assert addresses.assign("s", "0", ["id"], ["a", "b"]).rows == {"a": 2, "b": 3}
    parameters = {"spreadsheet_id": "s", "sheet": "0", "keys": '["b", "c"]'}
    plan = "".join(line for (line,) in database.read(Statement(f"EXPLAIN {_ROWS_OF_KEYS}"), parameters))
    assert "sheet_rows_pkey" in plan
    assert "row_key = " in plan.partition("Index Cond: ")[2]
    database.close()


def test_forget__spreadsheet__deletes_its_rows(make: MakesSink, server: SheetsServer) -> None:
    sink = make()
    sink.write(rows("a", "b"))
    sink.forget()
    assert sink._sheet_rows.columns(sink.spreadsheet_id, "0") is None
    with pytest.raises(SinkError, match="were not written through this database"):
        make()


@pytest.mark.parametrize(("number", "name"), [(1, "A"), (26, "Z"), (27, "AA"), (702, "ZZ"), (703, "AAA")])
def test_column_name__number__returns_letters(number: int, name: str) -> None:
    assert column_name(number) == name


def test_write__two_processes_write_the_same_rows_with_faults__each_is_there_once(
    server: SheetsServer, spreadsheet: str, empty_database_url: str
) -> None:
    sign = "&" if "?" in empty_database_url else "?"
    server.fail(429, 2, retry_after="1", matching=WRITES)
    server.lose_responses(3, matching=WRITES)
    server.lose_responses(2, matching=WRITES, reset=True)
    server.fail(503, 2, matching=WRITES)
    options = {
        "endpoint": server.url,
        "spreadsheet": spreadsheet,
        "database": f"{empty_database_url}{sign}timeout=30",
    }
    with start_workers(2, "sheet_writes", keys=600, batch=40, **options) as workers:
        first, second = run_together(workers)
    assert first == second == sorted(keys_in(server, spreadsheet))


def test_write__process_killed__another_continues_and_each_row_is_there_once(
    make: MakesSink, server: SheetsServer, spreadsheet: str, database: str
) -> None:
    options = {"endpoint": server.url, "spreadsheet": spreadsheet, "database": database}
    with Worker("sheet_writes", number=0, keys=200, batch=40, **options) as worker:
        worker.wait_ready()
        server.requests.clear()
        server.lose_responses(1, matching=WRITES)
        server.hang(1, execute=True, matching=WRITES)
        worker.go()
        wait_until(lambda: len(server.requests) >= 2)
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


@pytest.mark.unmeasured
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=STEPS)
def test_write__any_order_of_writers_and_faults__each_row_has_its_last_value(
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
            server.lose_responses(2, matching=WRITES, reset=fault == "reset")
        elif fault == "grow":
            server.lose_responses(2, matching=f"{spreadsheet}{GROWTH}")
        elif fault:
            server.fail(500, 1, matching=WRITES)
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


def test_write__two_sinks_alternate__no_row_is_assigned_twice(make: MakesSink, server: SheetsServer) -> None:
    sinks = [make(), make()]
    for turn, (number, sink) in product(range(5), enumerate(sinks)):
        sink.write(rows(f"{turn}-{number}", f"{turn}-both"))
    numbers = sinks[0]._sheet_rows.database.read(NUMBERS, {})
    assert [number for (number,) in numbers] == list(range(2, 2 + 15))
