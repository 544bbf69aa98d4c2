"""``comporta top``: its output for invented and for real states; test_top_live.py tests terminals."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from io import StringIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.cli_runner import run, run_process
from tests.cli.sample_fleet import MINUTE, NOW, card, document, event, fleet, history, worker
from tests.support import redis_store

from comporta import HealthCache
from comporta.cli.console import clock_time
from comporta.cli.top_render import fair_shares, render
from comporta.cli.top_source import FleetNotFoundError, FleetSource, FleetUnavailableError
from comporta.cli.top_upstreams import BARS, BARS_ASCII, Canvas, TopSnapshot, short_duration, sparkline
from comporta.database.command import execute
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.fleet.reader import FLEET, NAMES, SUMMARIES
from comporta.service.batch.commands import add_job
from comporta.service.batch.models import JobBounds
from comporta.service.migrations import MIGRATIONS
from comporta.stores.failover.worker_registry import ListWorkers, RecordHeartbeat, Worker
from comporta.stores.records import WriteRecord
from comporta.stores.shared.directory import directory_path
from comporta.stores.shared.store import SharedStore
from comporta.testing import Server


def rendered_lines(width: int = 150, height: int | None = None, error: str = "", **more: Any) -> list[str]:
    """Return the lines of a snapshot of an invented fleet."""
    console = Console(file=StringIO(), width=width, force_terminal=False)
    canvas = Canvas(width, height)
    with console.capture() as captured:
        console.print(render(TopSnapshot(document(**more), history()), canvas, "shared://x", error))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_render__shadow_mode__shows_what_would_have_been_refused() -> None:
    words = "Closed: calls pass. In shadow mode, refusing nothing: limit."
    shadow = card("pncp", shadow=["limit"], in_words=words, minute={**MINUTE, "would_refuse": 17})
    lines = rendered_lines(width=180, upstreams=[shadow])
    assert any("would refuse" in line for line in lines)
    assert any(line.startswith(" pncp ") and " 17 " in line for line in lines)
    assert any(words in line for line in lines)


def test_render__wide__shows_the_state_of_each_upstream_and_the_reason() -> None:
    output = "\n".join(rendered_lines(width=165))
    for heading in (
        "limit",
        "tokens",
        "in flight",
        "ok",
        "refused",
        "held back",
        "retries",
        "latency p95",
        "wait p50",
        "wait p95",
        "last ",
    ):
        assert heading in output
    [row] = [line for line in rendered_lines(width=165) if line.startswith(" pncp ")]
    figures = ["5", "of", "10/s", "10/10", "2/10", "1,204", "1,100", "80", "24", "302", "33", "250", "ms"]
    assert row.split()[:-1] == ["pncp", "open", "23", "s", *figures, "12", "ms", "1.4", "s"]
    until = clock_time(NOW + 23)
    assert f"pncp: Open until {until} (23 s left): 50 failures in a row, the last: HTTP 503." in output
    assert " pcp: Paused for 12 s" in output
    assert " slow: Half-open" in output
    assert "no breaker" in output
    assert "warn: pncp is open" in output


@pytest.mark.parametrize(
    ("changes", "is_explained"),
    [
        ({}, False),
        ({"phase": None}, False),
        ({"failures": 2}, True),
        ({"forced": "closed"}, True),
        ({"paused": 3.0}, True),
        ({"limit": 5.0}, True),
        ({"limit_text": "10/s", "configured_text": "20/s"}, True),
        ({"limit_text": "10/s", "configured_text": "10/s"}, False),
        ({"phase": "half-open"}, True),
        ({"phase": "half-open", "in_words": ""}, False),
    ],
)
def test_render__upstream__is_explained_only_if_its_state_is_unusual(
    changes: dict[str, Any], is_explained: bool
) -> None:
    lines = rendered_lines(upstreams=[card("pncp", **{"in_words": "The explanation.", **changes})])
    assert (" pncp: The explanation." in lines) is is_explained


@pytest.mark.parametrize(("forced", "phase"), [("closed", "closed"), ("open", "open")])
def test_render__held_by_an_operator__says_so_in_the_state(forced: str, phase: str) -> None:
    held = card("pncp", forced=forced, phase=phase, in_words=f"Held {forced} by an operator.")
    [row] = [line for line in rendered_lines(upstreams=[held]) if line.startswith(" pncp ")]
    assert row.split()[1:3] == ["held", forced]


def test_render__workers__are_shown_with_what_they_hold() -> None:
    output = "\n".join(rendered_lines())
    assert "Workers: 2\n" in output
    assert (
        "up 2 h, last heartbeat 300 ms ago  holds the probe of slow, 2 calls to pncp, 40 tokens of pncp on "
        in output
    )
    assert "on lease, 1 fetch, 2 jobs" in output
    assert "Workers: none" in "\n".join(rendered_lines(workers=[]))


def test_render__events__are_sentences_with_their_workers() -> None:
    output = "\n".join(rendered_lines())
    assert f" {clock_time(NOW - 3)}  pncp: opened for 30 s  web-1:4001 and 2 more" in output
    assert "pncp: a note  web-1:4001\n" in output + "\n"
    assert "Latest events" not in "\n".join(rendered_lines(events=[]))


@pytest.mark.unmeasured
@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 30])
@pytest.mark.parametrize("height", [None, 50, 24, 12])
def test_render__any_size__fits_the_width_and_the_height(width: int, height: int | None) -> None:
    workers = [worker(number, permits={"pncp": number}) for number in range(1, 90)]
    lines = rendered_lines(width, height, workers=workers, events=[event("something " * 20)] * 30)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("comporta top")
    if height is not None and height >= 24:
        assert len(lines) <= height
        assert any(line.endswith(" more") for line in lines)
        assert "Latest events" in lines


def test_render__narrow__keeps_the_columns_of_lowest_rank() -> None:
    [heads] = [line for line in rendered_lines(60) if "upstream" in line]
    assert heads.split() == ["upstream", "state", "limit", "calls/min", "failed"]


def test_render__error__is_shown_and_the_rest_is_dimmed() -> None:
    lines = rendered_lines(error="redis://x is unreachable")
    assert lines[1] == "redis://x is unreachable"
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(render(TopSnapshot(document(), history()), Canvas(100), "x", "lost"))
    [row] = [line for line in captured.get().splitlines() if "web-2:4002" in line]
    assert "\x1b[2m" in row


def test_render__no_upstreams__reports_it() -> None:
    assert "No upstream was used in the last 30 s." in rendered_lines(upstreams=[])


def test_render__control_characters_in_the_state__are_replaced() -> None:
    output = "\n".join(rendered_lines(events=[event("\x1b[2J\x1b[31mgone\r\n")], story={"title": "\x07"}))
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "�[2J�[31mgone" in output


def test_render__cache_and_jobs__are_one_line_each() -> None:
    cache = {"hit_rate": 0.9, "stale_served_rate": 0.05, "entries": 1200, "degraded_keys_count": 2}
    job = {"id": "3f2a91bc", "status": "running", "total": 100, "succeeded": 7, "failed": 1}
    output = rendered_lines(
        cache={**cache, "minute": {"hits": 12, "stale": 1, "misses": 1}},
        jobs=[
            {**job, "worker": "web-1:4001", "workers": 1, "backfill": {"status": "done"}},
            {**job, "worker": "web-1:4001", "workers": 2},
            job | {"failed": 0},
        ],
        database={"status": "ok"},
    )
    figures = "last minute: 12 hits, 1 stale, 1 miss; last 24 h: 90% hits, 5% stale"
    assert f"Cache: 1,200 entries, 2 degraded; {figures}" in output
    assert "Job: 3f2a91bc running, 8 of 100, 1 failed, by web-1:4001, backfill done" in output
    assert "Job: 3f2a91bc running, 8 of 100, 1 failed, by 2 workers" in output
    assert "Job: 3f2a91bc running, 7 of 100" in output
    assert "Database: it is gone" in rendered_lines(database={"status": "fail", "reason": "it is gone"})


def test_render__step_of_a_demo__is_shown() -> None:
    story = {"title": "A portal fails", "text": "Calls fail.", "look": "Look at pncp."}
    assert "A portal fails: Calls fail." in rendered_lines(story=story)


def test_sparkline__last_slots__are_red_where_most_calls_failed() -> None:
    text = sparkline(history(), "pncp", 12, BARS)
    assert len(text) == 12
    assert text.plain[-1] == BARS[-1]
    assert list(text.plain) == sorted(text.plain, key=BARS.index)
    assert [str(part.style) for part in text.spans] == ["green"] * 6 + ["red"] * 6
    assert sparkline(history(), "pncp", 3, BARS_ASCII).plain == "###"
    assert sparkline(history(), "unknown", 3, BARS).plain == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.0124, "12 ms"), (1.44, "1.4 s"), (12.3, "12 s"), (75, "1 min")]
)
def test_short_duration__seconds__are_a_few_characters(seconds: float | None, text: str) -> None:
    assert short_duration(seconds) == text


@pytest.fixture(params=["shared", "valkey"])
def url(request: pytest.FixtureRequest, shared_name: str) -> str:
    """Return the URL of an empty state, of each kind that top can read."""
    if request.param == "shared":
        return f"shared://{shared_name}"
    server: Server = request.getfixturevalue("valkey")
    server.command("FLUSHALL")
    return f"{server.url}?timeout=5"


def test_top__not_a_terminal__prints_one_snapshot(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with fleet(url):
        ran = run("top", url)
    assert ran.exit_code == 0, ran.output
    assert "dead: Open until" in ran.stdout
    assert "3 failures in a row" in ran.stdout
    [row] = [line for line in ran.stdout.splitlines() if line.startswith(" well ")]
    assert row.split()[1:3] == ["closed", "100/s"]
    assert "dead: " in ran.stdout.partition("Latest events")[2]


def test_top__json__is_the_document_of_the_dashboard(url: str) -> None:
    with fleet(url):
        found = json.loads(run("top", url, "--json").stdout)
    assert {"at", "version", "status", "reasons", "state", "database", "cache", "jobs", "story"} <= set(found)
    dead, well = found["upstreams"]
    assert (dead["name"], dead["phase"], well["phase"]) == ("dead", "open", "closed")
    assert (well["minute"]["calls"], dead["minute"]["failed"]) == (5, 3)
    assert (found["status"], found["reasons"]) == ("warn", ["dead is open"])


def test_top__reading_a_state__registers_no_worker(shared_name: str) -> None:
    store = SharedStore(shared_name, memory=8)
    try:
        ran = run_process("top", f"shared://{shared_name}", "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["workers"] == []
        assert store.apply(ListWorkers()) == []
    finally:
        store.close()


def test_top__unused_shared_name__reports_it_and_creates_nothing(shared_name: str) -> None:
    state = f"shared://{shared_name}"
    ran = run("top", state)
    assert (ran.exit_code, ran.stdout) == (0, f"No process on this machine uses {state}.\n")
    found = json.loads(run("top", state, "--json").stdout)
    assert found["reasons"] == [f"No process on this machine uses {state}"]
    assert (found["upstreams"], found["workers"], found["events"]) == ([], [], [])
    assert not Path(directory_path(shared_name)).exists()


def test_top__memory__is_a_usage_error() -> None:
    ran = run("top", "memory://")
    assert ran.exit_code == 2
    assert "top cannot read memory://" in ran.stderr


def test_top__unreachable_server__fails_with_one_sentence_without_the_password() -> None:
    ran = run("top", "redis://:hunter2@127.0.0.1:1/0")
    assert ran.exit_code == 1
    assert ran.stderr.endswith(". To diagnose it, run `comporta doctor STATE`.\n")
    assert "hunter2" not in ran.output


def test_top__password_of_a_state__is_not_shown(valkey: Server) -> None:
    valkey.command("ACL", "SETUSER", "someone", "reset", "on", ">hunter2", "~*", "+@all")
    try:
        ran = run("top", valkey.url.replace("//", "//someone:hunter2@") + "?timeout=5")
    finally:
        valkey.command("ACL", "DELUSER", "someone")
    assert ran.exit_code == 0
    assert "hunter2" not in ran.output
    assert f"{valkey.port}" in ran.stdout


def test_top__invalid_records_in_a_state__are_ignored(valkey: Server) -> None:
    with redis_store(valkey) as store:
        store.apply(WriteRecord(FLEET, NAMES, b"1700000000 odd", 60))
        store.apply(WriteRecord(SUMMARIES, "odd", b"[]", 60))
        ran = run("top", f"{valkey.url}?timeout=5")
    assert ran.exit_code == 0
    assert "No upstream was used" in ran.stdout


def test_fleet_source__server_killed_and_restarted__is_read_again(own_server: Server) -> None:
    source = FleetSource(f"{own_server.url}?timeout=5", None)
    try:
        source.read()
        own_server.kill()
        with pytest.raises(FleetUnavailableError, match=str(own_server.port)):
            source.read()
        own_server.start()
        assert source.read().document["status"] == "ok"
    finally:
        source.close()


def test_fleet_source__directory_removed_and_created_again__reads_the_new_one(shared_name: str) -> None:
    """As when a fleet ends and starts again: the open files of the first would never change."""
    source = FleetSource(f"shared://{shared_name}", None)
    try:
        with pytest.raises(FleetNotFoundError, match="No process on this machine uses"):
            source.read()
        SharedStore(shared_name, memory=8).close()
        assert source.read().document["workers"] == []
        shutil.rmtree(directory_path(shared_name))
        with pytest.raises(FleetNotFoundError):
            source.read()
        assert _worker_count(source, shared_name) == 1
        shutil.rmtree(directory_path(shared_name))
        assert _worker_count(source, shared_name) == 1
    finally:
        source.close()


def _worker_count(source: FleetSource, name: str) -> int:
    """Create a state with one worker, and return how many workers the source reads."""
    store = SharedStore(name, memory=8)
    try:
        store.apply(RecordHeartbeat(Worker.new()))
        return len(source.read().document["workers"])
    finally:
        store.close()


def test_top__database__shows_the_cache_and_the_jobs(database_url: str, shared_name: str) -> None:
    database = open_database(database_url)
    try:
        migrate(database, MIGRATIONS)
        job = f"job-{shared_name}"
        execute(database, add_job(job, "ana", "digest", ["a", "b"], JobBounds(1000)))
    finally:
        database.close()
    cache = HealthCache(database_url, state="memory://")
    cache.sync.save_to_cache("ana", {"q": 1}, [1])
    cache.sync.close()
    SharedStore(shared_name, memory=8).close()
    ran = run("top", f"shared://{shared_name}", "--database", database_url)
    assert ran.exit_code == 0, ran.output
    assert "Cache: 1 entry; " in ran.stdout
    assert f"Job: {job[:8]} " in ran.stdout
    found = json.loads(run("top", f"shared://{shared_name}", "--database", database_url, "--json").stdout)
    assert found["database"]["status"] == "ok"
    assert found["jobs"][0]["total"] == 2


@pytest.mark.parametrize(
    "database", ["sqlite:///{folder}/absent.db", "postgresql://me:secret@127.0.0.1:1/app"]
)
def test_top__unreachable_database__is_reported_and_the_rest_is_shown(
    database: str, shared_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedStore(shared_name, memory=8).close()
    monkeypatch.setenv("DATABASE_URL", database.format(folder=tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    ran = run("top", f"shared://{shared_name}")
    assert ran.exit_code == 0
    assert "the database cannot be read" in ran.stdout
    assert "Database: " in ran.stdout
    assert "Workers: none" in ran.stdout
    assert "secret" not in ran.output
    assert list(tmp_path.iterdir()) == []


def test_top__unknown_kind_of_database__is_a_usage_error(shared_name: str) -> None:
    ran = run("top", f"shared://{shared_name}", "--database", "mysql://x")
    assert ran.exit_code == 2
    assert "--database" in ran.stderr


def test_render__sixty_upstreams_at_24_lines__every_section_has_its_share() -> None:
    cards = [card(f"source-{number:02}") for number in range(59)]
    words = "Open until 22:13:43: 50 failures in a row."
    cards.append(card("zz-dead", phase="open", until=NOW + 23, in_words=words))
    workers = [worker(number) for number in range(40)]
    lines = rendered_lines(80, 24, upstreams=cards, workers=workers, events=[event("it opened")] * 30)
    assert len(lines) <= 24
    assert any(line.startswith(" zz-dead ") for line in lines)
    assert sum("web-" in line and "up 2 h" in line for line in lines) >= 3
    assert sum("it opened" in line for line in lines) >= 3
    shown = sum(line.startswith(" source-") for line in lines) + 1
    assert f" and {60 - shown} more" in [line.rstrip() for line in lines]


def test_render__many_unusual_upstreams_at_24_lines__every_one_has_its_row_worst_first() -> None:
    words = "An operator set the limit to 8/s burst 5 (20/s burst 5 is configured) until it is revoked."
    changed = card("a-changed", limit_text="8/s", configured_text="20/s", in_words=words)
    others = [
        card("b-paused", paused=500.0, in_words="Paused for 8 min."),
        card("c-half", phase="half-open", in_words="Half-open: the next call is a probe."),
        card("d-held", forced="closed", in_words="Held closed by an operator."),
        card("z-open", phase="open", until=NOW + 23, in_words="Open until 22:13:43: HTTP 503."),
    ]
    events = [event("it opened")] * 30
    lines = rendered_lines(80, 24, upstreams=[changed, *others], events=events)
    rows = [line.split()[0] for line in lines if re.match(r" [a-dz]-\w+  ", line)]
    assert rows == ["z-open", "d-held", "c-half", "b-paused", "a-changed"]
    assert len(lines) <= 24
    higher = rendered_lines(80, 26, upstreams=[changed, *others], events=events)
    assert any(line.startswith(" z-open: Open until ") for line in higher)
    assert not any(line.startswith(" a-changed: ") for line in higher)


def test_render__no_upstream_on_a_low_terminal__says_so() -> None:
    assert any("No upstream was used" in line for line in rendered_lines(80, 3, upstreams=[]))


def test_render__80_columns_and_a_long_state__says_what_is_wrong_first() -> None:
    reasons = ["settlement-service-eu is open", "pcp is paused"]
    console = Console(file=StringIO(), width=80, force_terminal=False)
    with console.capture() as captured:
        where = "rediss://cache-production-1.example.com:6380/0"
        console.print(render(TopSnapshot(document(reasons=reasons), history()), Canvas(80, 24), where))
    first = captured.get().splitlines()[0]
    start = f"comporta top (? shows keys)  {clock_time(NOW)}  warn: settlement-service-eu is open, p"
    assert first.startswith(start)


def test_render__80_columns__headings_say_what_they_measure() -> None:
    [heading] = [line for line in rendered_lines(80) if line.startswith(" upstream ")]
    assert re.split(r"  +", heading.strip()) == [
        *("upstream", "state", "limit", "calls/min", "failed", "latency p95", "wait p95"),
    ]
    [row] = [line for line in rendered_lines(80) if line.startswith(" pncp ")]
    assert row.split()[-4:] == ["250", "ms", "1.4", "s"]


def test_render__names_of_16_characters_at_80_columns__show_every_essential_column() -> None:
    names = ["payments-gateway", "billing-invoices"]
    upstreams = [
        card(names[0], paused=900.0, limit=2.5, minute={**MINUTE, "calls": 123_758, "wait_p95": 0.25}),
        card(names[1], forced="closed", phase="closed", minute=MINUTE),
    ]
    lines = rendered_lines(80, upstreams=upstreams)
    last = next(number for number, line in enumerate(lines) if line.startswith(" upstream "))
    headings = [
        " ".join("".join(part).split()) for part in zip(*_cells(lines[last - 1 : last + 1]), strict=True)
    ]
    assert headings == [
        *("upstream", "state", "limit", "calls /min", "failed", "latency p95", "wait p95"),
    ]
    rows = _cells(line for line in lines if line.startswith(tuple(f" {name} " for name in names)))
    assert [[cell.strip() for cell in row] for row in rows] == [
        [names[0], "paused 15 min", "2.5 of 10/s", "123,456", "80", "250 ms", "250 ms"],
        [names[1], "held closed", "10/s", "1,204", "80", "250 ms", "1.4 s"],
    ]
    assert max(map(len, lines)) <= 80


def _cells(lines: Iterable[str]) -> list[list[str]]:
    """Return the cells of a table of 80 columns with names of 16 characters."""
    widths = (16, 13, 11, 7, 6, 7, 6)
    ends = list(accumulate(width + 2 for width in widths))
    return [
        [line[end - width - 1 : end - 1] for width, end in zip(widths, ends, strict=True)] for line in lines
    ]


def test_render__longer_names_at_80_columns__lose_their_middle_and_no_column() -> None:
    upstreams = [card(f"settlement-service-{region}", minute=MINUTE) for region in ("eu", "us")]
    lines = rendered_lines(80, upstreams=upstreams)
    rows = [line for line in lines if line.startswith(" settle")]
    assert [row.split()[0] for row in rows] == ["settleme…vice-eu", "settleme…vice-us"]
    assert all(row.endswith("250 ms   1.4 s") for row in rows)
    wide = rendered_lines(120, upstreams=upstreams)
    assert any(line.startswith(" settlement-service-eu  closed") for line in wide)


@pytest.mark.parametrize(
    ("lines", "wanted", "shares"),
    [
        (30, [5, 6, 7], [5, 6, 7]),
        (30, [60, 40, 30], [10, 10, 10]),
        (30, [60, 4, 40], [13, 4, 13]),
        (2, [60, 40, 30], [1, 1, 0]),
        (-3, [1, 1], [0, 0]),
    ],
)
def test_fair_shares__lines__are_divided_between_the_sections(
    lines: int, wanted: list[int], shares: list[int]
) -> None:
    assert fair_shares(lines, wanted) == shares
