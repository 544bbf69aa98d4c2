"""``comporta top``: what it draws, and what it says of real states; test_top_live.py is about terminals."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.fleets import NOW, document, event, fleet, history, worker
from tests.cli.running import run, run_for_real
from tests.support import redis_store

from comporta import HealthCache
from comporta.cli import top_drawing
from comporta.cli.top_drawing import BARS, BARS_ASCII, Paper, Picture, drawn, spark
from comporta.cli.top_looking import Looking, NobodyError, UnseenError
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.requests import add_job, ask
from comporta.service.migrations import MIGRATIONS
from comporta.stores.folder import path_of
from comporta.stores.records import Write
from comporta.stores.shared import SharedStore
from comporta.stores.workers import Beat, Roll, Worker
from comporta.testing import Server
from comporta.watching.fleet import FLEET, NAMES, STANDINGS


def picture(width: int = 150, height: int | None = None, lost: str = "", **more: Any) -> list[str]:
    """Return the lines of a picture of an invented fleet."""
    console = Console(file=StringIO(), width=width, force_terminal=False)
    paper = Paper(width, height)
    with console.capture() as captured:
        console.print(drawn(Picture(document(**more), history()), paper, "shared://x", lost))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_drawn__wide__says_how_each_upstream_stands_and_why() -> None:
    told = "\n".join(picture())
    for heading in (
        "limit",
        "tokens",
        "in flight",
        "ok",
        "refused",
        "held back",
        "retries",
        "wait p50",
        "p95",
        "last ",
    ):
        assert heading in told
    [row] = [line for line in picture() if line.startswith(" pncp ")]
    figures = ["5", "of", "10/s", "10/10", "2/10", "1,204", "1,100", "80", "24", "302", "33"]
    assert row.split()[:-1] == ["pncp", "open", "23", "s", *figures, "12", "ms", "1.4", "s"]
    until = top_drawing.clock(NOW + 23)
    assert f"pncp: Open until {until} (23 s more): 50 failures in a row, the last: HTTP 503." in told
    assert " pcp: Paused for 12 s" in told
    assert " slow: Half-open" in told
    assert "no breaker" in told
    assert "warn: pncp is open" in told


def test_drawn__workers__are_shown_with_what_they_hold() -> None:
    told = "\n".join(picture())
    assert "Workers: 2\n" in told
    assert "up 2 h, heard 300 ms ago  holds the probe of slow, 2 calls to pncp, 40 tokens of pncp on " in told
    assert "on lease, 1 fetch, 2 jobs" in told
    assert "Workers: none at the moment" in "\n".join(picture(workers=[]))


def test_drawn__events__are_in_words_with_who_told_them() -> None:
    told = "\n".join(picture())
    assert f" {top_drawing.clock(NOW - 3)}  pncp: opened for 30 s  web-1:4001 and 2 more" in told
    assert "pncp: a note  web-1:4001\n" in told + "\n"
    assert "Latest events" not in "\n".join(picture(events=[]))


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 40, 30])
@pytest.mark.parametrize("height", [None, 50, 24, 12])
def test_drawn__any_size__no_line_is_longer_and_none_too_many(width: int, height: int | None) -> None:
    workers = [worker(number, permits={"pncp": number}) for number in range(1, 90)]
    lines = picture(width, height, workers=workers, events=[event("something " * 20)] * 30)
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("comporta top")
    if height is not None and height >= 24:
        assert len(lines) <= height
        assert any(line.endswith(" more") for line in lines)
        assert "Latest events" in lines


def test_drawn__narrow__keeps_the_first_columns() -> None:
    [heads] = [line for line in picture(60) if "upstream" in line]
    assert heads.split() == ["upstream", "state", "limit", "calls", "failed"]


def test_drawn__lost__is_said_and_the_rest_is_grey() -> None:
    lines = picture(lost="redis://x cannot be reached")
    assert lines[1] == "redis://x cannot be reached"
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        console.print(drawn(Picture(document(), history()), Paper(100), "x", "lost"))
    [row] = [line for line in captured.get().splitlines() if "web-2:4002" in line]
    assert "\x1b[2m" in row


def test_drawn__no_upstreams__says_so() -> None:
    assert "No upstream was used in the last half minute." in picture(upstreams=[])


def test_drawn__what_others_wrote__cannot_move_the_cursor() -> None:
    told = "\n".join(picture(events=[event("\x1b[2J\x1b[31mgone\r\n")], story={"title": "\x07"}))
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "�[2J�[31mgone" in told


def test_drawn__tables__are_shown_in_a_line_each() -> None:
    cache = {"hit_rate": 0.9, "stale_served_rate": 0.05, "entries": 1200, "degraded_keys_count": 2}
    job = {"id": "3f2a91bc", "status": "running", "total": 100, "succeeded": 7, "failed": 1}
    told = picture(
        cache={**cache, "minute": {"hits": 12, "stale": 1, "misses": 0}},
        jobs=[{**job, "worker": "web-1:4001", "backfill": {"status": "done"}}, job | {"failed": 0}],
        database={"status": "ok"},
    )
    figures = "last minute 12 hits, 1 stale, 0 misses; in 24 h 90% hits, 5% stale"
    assert f"Cache: 1,200 entries, 2 left alone; {figures}" in told
    assert "Job: 3f2a91bc running, 8 of 100, 1 failed, by web-1:4001, backfill done" in told
    assert "Job: 3f2a91bc running, 7 of 100" in told
    assert "Database: it is gone" in picture(database={"status": "fail", "why": "it is gone"})


def test_drawn__story_of_a_demo__is_told() -> None:
    story = {"title": "A portal dies", "text": "Calls fail.", "look": "Look at pncp."}
    assert "A portal dies: Calls fail." in picture(story=story)


def test_spark__last_slots__rise_and_are_red_where_most_failed() -> None:
    text = spark(history(), "pncp", 12, BARS)
    assert len(text) == 12
    assert text.plain[-1] == BARS[-1]
    assert list(text.plain) == sorted(text.plain, key=BARS.index)
    assert [str(part.style) for part in text.spans] == ["green"] * 6 + ["red"] * 6
    assert spark(history(), "pncp", 3, BARS_ASCII).plain == "###"
    assert spark(history(), "unknown", 3, BARS).plain == ""


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (0.0124, "12 ms"), (1.44, "1.4 s"), (12.3, "12 s"), (75, "1 min")]
)
def test_span__length_of_time__is_short(seconds: float | None, said: str) -> None:
    assert top_drawing.span(seconds) == said


@pytest.fixture(params=["shared", "valkey"])
def url(request: pytest.FixtureRequest, shared_name: str) -> str:
    """Give an empty state of each kind that can be looked at."""
    if request.param == "shared":
        return f"shared://{shared_name}"
    server: Server = request.getfixturevalue("valkey")
    server.command("FLUSHALL")
    return f"{server.url}?timeout=5"


def test_top__a_fleet__is_printed_once_off_a_terminal(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    with fleet(url):
        ran = run("top", url)
    assert ran.exit_code == 0, ran.output
    assert "dead: Open until" in ran.stdout
    assert "3 failures in a row" in ran.stdout
    [row] = [line for line in ran.stdout.splitlines() if line.startswith(" well ")]
    assert row.split()[1:3] == ["closed", "100/s"]
    assert "dead: " in ran.stdout.partition("Latest events")[2]


def test_top__for_scripts__is_the_document(url: str) -> None:
    with fleet(url):
        found = json.loads(run("top", url, "--json").stdout)
    assert {"at", "version", "status", "reasons", "state", "database", "cache", "jobs", "story"} <= set(found)
    dead, well = found["upstreams"]
    assert (dead["name"], dead["phase"], well["phase"]) == ("dead", "open", "closed")
    assert (well["minute"]["calls"], dead["minute"]["failed"]) == (5, 3)
    assert (found["status"], found["reasons"]) == ("warn", ["dead is open"])


def test_top__looking__makes_no_worker(shared_name: str) -> None:
    store = SharedStore(shared_name, keys=1024)
    try:
        ran = run_for_real("top", f"shared://{shared_name}", "--json")
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["workers"] == []
        assert store.apply(Roll()) == []
    finally:
        store.close()


def test_top__nobody_uses_the_name__says_so_and_makes_nothing(shared_name: str) -> None:
    state = f"shared://{shared_name}"
    ran = run("top", state)
    assert (ran.exit_code, ran.stdout) == (0, f"Nobody on this machine uses {state}.\n")
    found = json.loads(run("top", state, "--json").stdout)
    assert found["reasons"] == [f"Nobody on this machine uses {state}"]
    assert (found["upstreams"], found["workers"], found["events"]) == ([], [], [])
    assert not Path(path_of(shared_name)).exists()


def test_top__memory__cannot_be_seen() -> None:
    ran = run("top", "memory://")
    assert ran.exit_code == 2
    assert "memory:// is one process's own" in ran.stderr


def test_top__server_not_there__is_one_sentence_without_the_password() -> None:
    ran = run("top", "redis://:hunter2@127.0.0.1:1/0")
    assert ran.exit_code == 1
    assert ran.stderr.endswith(". `comporta doctor STATE` tells what to mend.\n")
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


def test_top__what_makes_no_sense_in_a_state__is_passed_over(valkey: Server) -> None:
    with redis_store(valkey) as store:
        store.apply(Write(FLEET, NAMES, b"1700000000 odd", 60))
        store.apply(Write(STANDINGS, "odd", b"[]", 60))
        ran = run("top", f"{valkey.url}?timeout=5")
    assert ran.exit_code == 0
    assert "No upstream was used" in ran.stdout


def test_looking__server_killed_and_back__is_seen_again(own_server: Server) -> None:
    looking = Looking(f"{own_server.url}?timeout=5", None)
    try:
        looking.look()
        own_server.kill()
        with pytest.raises(UnseenError, match=str(own_server.port)):
            looking.look()
        own_server.start()
        assert looking.look().document["status"] == "ok"
    finally:
        looking.close()


def test_looking__folder_removed_and_made_anew__is_the_one_that_is_seen(shared_name: str) -> None:
    """As by a fleet that ends and begins: whoever held on to the first would look at nothing for ever."""
    looking = Looking(f"shared://{shared_name}", None)
    try:
        with pytest.raises(NobodyError, match="Nobody on this machine uses"):
            looking.look()
        SharedStore(shared_name, keys=1024).close()
        assert looking.look().document["workers"] == []
        shutil.rmtree(path_of(shared_name))
        with pytest.raises(NobodyError):
            looking.look()
        assert _workers_seen(looking, shared_name) == 1
        shutil.rmtree(path_of(shared_name))
        assert _workers_seen(looking, shared_name) == 1
    finally:
        looking.close()


def _workers_seen(looking: Looking, name: str) -> int:
    """Make a folder with a worker in it, and count those that are seen."""
    store = SharedStore(name, keys=1024)
    try:
        store.apply(Beat(Worker.here()))
        return len(looking.look().document["workers"])
    finally:
        store.close()


def test_top__database__is_shown_with_who_is_at_what(database_url: str, shared_name: str) -> None:
    database = open_database(database_url)
    try:
        migrate(database, MIGRATIONS)
        job = f"job-{shared_name}"
        ask(database, add_job(job, "ana", "digest", ["a", "b"], 1000))
    finally:
        database.close()
    cache = HealthCache(database_url, state="memory://")
    cache.sync.save_to_cache("ana", {"q": 1}, [1])
    cache.sync.close()
    SharedStore(shared_name, keys=1024).close()
    ran = run("top", f"shared://{shared_name}", "--database", database_url)
    assert ran.exit_code == 0, ran.output
    assert "Cache: 1 entry; " in ran.stdout
    assert f"Job: {job[:8]} " in ran.stdout
    found = json.loads(run("top", f"shared://{shared_name}", "--database", database_url, "--json").stdout)
    assert found["database"]["status"] == "ok"
    assert found["jobs"][0]["total"] == 2


@pytest.mark.parametrize("kept", ["sqlite:///{folder}/absent.db", "postgresql://me:geheim@127.0.0.1:1/app"])
def test_top__database_out_of_reach__is_said_and_the_rest_is_there(
    kept: str, shared_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedStore(shared_name, keys=1024).close()
    monkeypatch.setenv("DATABASE_URL", kept.format(folder=tmp_path))
    ran = run("top", f"shared://{shared_name}")
    assert ran.exit_code == 0
    assert "the database cannot be read" in ran.stdout
    assert "Database: " in ran.stdout
    assert "Workers: none" in ran.stdout
    assert "geheim" not in ran.output
    assert list(tmp_path.iterdir()) == []


def test_top__no_database_of_this_kind__is_a_usage_error(shared_name: str) -> None:
    ran = run("top", f"shared://{shared_name}", "--database", "mysql://x")
    assert ran.exit_code == 2
    assert "--database" in ran.stderr
