"""Dead letters: durable when accepted, bounded, never dropped, readable by others."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.support import file_size_limit

from comporta.errors import DeadLettersError, DeadLettersFullError
from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.files.torn_tail import CHUNK_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "dead.jsonl"


def test_dead_letters__appended__are_read_with_line_reason_and_time(path: Path) -> None:
    dead_letters = DeadLetters(path)
    dead_letters.append({"id": 1}, ValueError("no"), attempts=4, key="k", position=17)
    dead_letters.extend([DeadLetter("a", "b"), DeadLetter("c", "d" * 5000, at=7.0)])
    dead_letters.close()
    dead_letters.close()
    first, second, third = DeadLetters.read(path)
    assert (first.item, first.reason, first.attempts, first.key, first.position, first.line) == (
        *({"id": 1}, "no", 4, "k", 17),
        1,
    )
    assert first.at > 1_700_000_000
    assert (second.item, second.attempts, second.line) == ("a", 1, 2)
    assert (len(third.reason), third.at, third.line) == (2000, 7.0, 3)


def test_dead_letters__reopened__append_to_the_file(path: Path) -> None:
    for number in range(3):
        dead_letters = DeadLetters(path)
        dead_letters.append(number, "again")
        dead_letters.close()
    assert [each.item for each in DeadLetters.read(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("item", "read"),
    [
        (date(2026, 2, 3), "2026-02-03"),
        ({"a": 1j}, {"a": "1j"}),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        ("\ud800\n", "\ud800\n"),
    ],
)
def test_dead_letters__value_not_json__is_stored_as_text(path: Path, item: Any, read: Any) -> None:
    DeadLetters(path).append(item, "odd")
    (dead_letter,) = DeadLetters.read(path)
    assert dead_letter.item == read


@pytest.mark.parametrize("torn", [b'{"at": 1, "rea', b'{"at": "' + b"x" * (CHUNK_BYTES + 10)])
def test_dead_letters__incomplete_line_of_a_killed_process__is_removed(path: Path, torn: bytes) -> None:
    DeadLetters(path).append(1, "whole")
    complete = path.read_bytes()
    path.write_bytes(complete + torn)
    assert [each.item for each in DeadLetters.read(path)] == [1], "not a complete line yet"
    DeadLetters(path).open()
    assert path.read_bytes() == complete
    path.write_bytes(torn)
    DeadLetters(path).append(2, "next")
    assert [each.item for each in DeadLetters.read(path)] == [2]


def test_dead_letters__max_bytes_reached__raises_and_drops_nothing(path: Path) -> None:
    dead_letters = DeadLetters(path, max_bytes=200)
    dead_letters.append(1, "fits")
    with pytest.raises(DeadLettersFullError, match="would exceed max_bytes=200"):
        dead_letters.extend([DeadLetter(2, "does not"), DeadLetter(3, "fit together")])
    assert [each.item for each in DeadLetters.read(path)] == [1]


@pytest.mark.parametrize(
    "line", ["nonsense", "[]", "3", '{"reason": "no item"}', '{"item": 1}', "\x80"], ids=range(6)
)
def test_dead_letters__invalid_line__is_named_in_the_error(path: Path, line: str) -> None:
    DeadLetters(path).append(1, "whole")
    with path.open("ab") as out:
        out.write(line.encode("latin-1") + b"\n")
    dead_letters = DeadLetters.read(path)
    assert next(dead_letters).item == 1
    with pytest.raises(DeadLettersError, match="line 2") as raised:
        next(dead_letters)
    assert raised.value.line == 2


def test_dead_letters__missing_folder__is_named_in_the_error(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "dead.jsonl"
    for call in (DeadLetters(nowhere).open, lambda: DeadLetters(nowhere).append(1, "x")):
        with pytest.raises(DeadLettersError, match="No such file"):
            call()
    with pytest.raises(DeadLettersError, match="No such file"):
        next(DeadLetters.read(nowhere))


def test_dead_letters__disk_full__appends_all_or_none(path: Path) -> None:
    dead_letters = DeadLetters(path)
    dead_letters.append(1, "whole")
    size = path.stat().st_size
    with file_size_limit(size + 10), pytest.raises(DeadLettersError, match="File too large"):
        dead_letters.append(2, "does not fit")
    assert path.stat().st_size == size
    dead_letters.append(3, "fits again")
    assert [each.item for each in DeadLetters.read(path)] == [1, 3]


def test_dead_letters__two_processes__share_a_file(path: Path) -> None:
    program = (
        "import sys\n"
        "from comporta.pipeline.dead_letters import DeadLetters\n"
        "dead_letters = DeadLetters(sys.argv[1])\n"
        "for number in range(50): dead_letters.append([sys.argv[2], number], 'x' * 500)\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, path, name]) for name in "ab"]
    assert [one.wait(60) for one in started] == [0, 0]
    items = [each.item for each in DeadLetters.read(path)]
    for name in "ab":
        assert [number for one, number in items if one == name] == list(range(50))


def test_dead_letters__forked__child_opens_its_own_descriptor(path: Path) -> None:
    dead_letters = DeadLetters(path)
    unused = DeadLetters(path)
    dead_letters.append("parent", "x")
    child = os.fork()
    if child == 0:
        dead_letters.append("child", "x")
        os._exit(0 if unused._file.descriptor is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dead_letters.append("parent", "x")
    assert [each.item for each in DeadLetters.read(path)] == ["parent", "child", "parent"]


@pytest.mark.parametrize(
    ("given", "message"), [(0, "at least 1, got 0"), ("1", "an int, got '1'"), (True, "an int")]
)
def test_dead_letters__invalid_max_bytes__is_named_in_the_error(path: Path, given: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"max_bytes must be {message}"):
        DeadLetters(path, max_bytes=given)


@pytest.mark.parametrize("content", [b"first\nlast", b'{\n "a": 1\n}', b'{"a": 1}\n{"b'])
def test_dead_letters__file_of_another_kind__is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for call in (DeadLetters(path).open, lambda: DeadLetters(path).append(1, "x")):
        with pytest.raises(DeadLettersError, match="not a file of dead letters"):
            call()
    assert path.read_bytes() == content


def test_open__file_of_another_kind__closes_the_file(path: Path) -> None:
    path.write_bytes(b"first\nlast")
    dead_letters = DeadLetters(path)
    with pytest.raises(DeadLettersError, match="not a file of dead letters"):
        dead_letters.open()
    assert dead_letters._file.descriptor is None


def test_dead_letters__complete_line_without_newline__is_kept(path: Path) -> None:
    DeadLetters(path).append(1, "whole")
    path.write_bytes(path.read_bytes().rstrip())
    DeadLetters(path).append(2, "next")
    assert [each.item for each in DeadLetters.read(path)] == [1, 2]


def test_dead_letters__full_file_moved_away__continue_in_a_new_one(path: Path) -> None:
    dead_letters = DeadLetters(path, max_bytes=200)
    dead_letters.append(1, "x")
    with pytest.raises(DeadLettersFullError, match="move the file away to continue"):
        dead_letters.append("y" * 200, "x")
    path.rename(path.with_suffix(".old"))
    dead_letters.append(2, "x")
    assert [each.item for each in DeadLetters.read(path)] == [2]
    dead_letters.close()


class Unprintable:
    """An object that cannot be converted to text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_dead_letters__item_that_cannot_be_printed__is_stored(path: Path) -> None:
    dead_letters = DeadLetters(path)
    dead_letters.append({"a": Unprintable()}, "x")
    dead_letters.append({("no", "text"): 1}, "x")
    first, second = DeadLetters.read(path)
    assert "Unprintable object" in first.item["a"]
    assert second.key is None
    dead_letters.close()
